"""The generator of MUNIT (Huang et al., 2018): images as content and style."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import normal
from hpc_amp.gan.layers import ConvBlock, LinearBlock, PixelMean, ReflectConv2d, initialize
from hpc_amp.gan.norms import AdaptiveInstanceNorm
from hpc_amp.gan.translation import Direction, Domain, Downsampling, Translator, Upsampling
from hpc_amp.tasks.munit.config import MunitNetworks


class MunitGenerator(Translator):
    """An image of a domain is encoded to a content code [B, width * 2**downs, h, w] and a style
    code [B, style]. A decoder makes an image of its domain from a content of either domain and a
    style of its own, which may also be random: normally distributed."""

    def __init__(self, config: MunitNetworks) -> None:
        super().__init__()
        self.style = config.style
        self.multiple = 2**config.downs
        self.contents, self.styles = nn.ModuleDict(), nn.ModuleDict()
        self.decoders = nn.ModuleDict()
        for domain in ("a", "b"):
            self.contents[domain] = Downsampling(config.width, config.downs, config.blocks)
            self.styles[domain] = StyleEncoder(config)
            self.decoders[domain] = StyledDecoder(config)
        initialize(self, "kaiming")

    def codes(self, seeds: Tensor, purpose: str) -> Tensor:
        """Random style codes [B, style] for seeds, int64 [B] on the CPU."""
        return normal(seeds, (self.style,), next(self.parameters()).device, purpose)

    def translate(
        self, images: Tensor, direction: Direction, style: Tensor | None = None
    ) -> Tensor:
        """See `Translator.translate`. None stands for the mean of all styles. A style code, float
        [B, style] or [1, style], can be given too."""
        self.check_size(images.shape[2], images.shape[3])
        if style is None:
            code = images.new_zeros(1, self.style)
        elif not style.is_floating_point():
            code = self.codes(style.cpu(), "translate")
        elif style.ndim == 4:
            code = self("style_of", style, direction[-1])
        else:
            code = style
        made: Tensor = self("translation", images, direction, code.expand(len(images), -1))
        return made

    def translate_each(self, images: Tensor, direction: Direction, codes: Tensor) -> Tensor:
        """Each image in each of its styles: images [B, 3, H, W] and codes [B, K, style] to
        [B, K, 3, H, W]."""
        self.check_size(images.shape[2], images.shape[3])
        made: Tensor = self("translations", images, direction, codes)
        return made

    def swap(self, a: Tensor, b: Tensor, code_a: Tensor, code_b: Tensor) -> dict[str, Tensor]:
        """`b_in_a` and `a_in_b`, as `_all` makes them."""
        made: dict[str, Tensor] = self("swapped", a, b, code_a, code_b)
        return made

    def _style_of(self, images: Tensor, domain: Domain) -> Tensor:
        code: Tensor = self.styles[domain](images)
        return code

    def _translation(self, images: Tensor, direction: Direction, code: Tensor) -> Tensor:
        source, target = direction.split("2")
        made: Tensor = self.decoders[target](self.contents[source](images), code)
        return made

    def _translations(self, images: Tensor, direction: Direction, codes: Tensor) -> Tensor:
        source, target = direction.split("2")
        contents = self.contents[source](images).repeat_interleave(codes.shape[1], 0)
        flat: Tensor = self.decoders[target](contents, codes.flatten(0, 1))
        return torch.unflatten(flat, 0, codes.shape[:2])

    def _swapped(self, a: Tensor, b: Tensor, code_a: Tensor, code_b: Tensor) -> dict[str, Tensor]:
        return {
            "b_in_a": self._translation(b, "b2a", code_a),
            "a_in_b": self._translation(a, "a2b", code_b),
        }

    def _all(
        self, a: Tensor, b: Tensor, code_a: Tensor, code_b: Tensor, cycle: bool
    ) -> dict[str, Tensor]:
        """Everything that the losses need, of images [B, 3, H, W] of both domains and random style
        codes [B, style]: content codes `content_a`, `content_b`; the images again, `a_again`,
        `b_again`; translations `a_in_b`, `b_in_a` in the random styles, with the contents
        `content_ab`, `content_ba` and the styles `style_ab`, `style_ba` that are found in them; and
        with `cycle` their translations back in the images' own styles, `a_back`, `b_back`."""
        content_a, content_b = self.contents["a"](a), self.contents["b"](b)
        own_a, own_b = self.styles["a"](a), self.styles["b"](b)
        a_again, b_in_a = self._decode("a", (content_a, content_b), (own_a, code_a))
        b_again, a_in_b = self._decode("b", (content_b, content_a), (own_b, code_b))
        content_ab, content_ba = self.contents["b"](a_in_b), self.contents["a"](b_in_a)
        made = {
            "content_a": content_a,
            "content_b": content_b,
            "a_again": a_again,
            "b_again": b_again,
            "a_in_b": a_in_b,
            "b_in_a": b_in_a,
            "content_ab": content_ab,
            "content_ba": content_ba,
            "style_ab": self.styles["b"](a_in_b),
            "style_ba": self.styles["a"](b_in_a),
        }
        if cycle:
            made["a_back"] = self.decoders["a"](content_ab, own_a)
            made["b_back"] = self.decoders["b"](content_ba, own_b)
        return made

    def _decode(
        self, domain: Domain, contents: tuple[Tensor, Tensor], codes: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        """Two batches in one pass."""
        images: Tensor = self.decoders[domain](torch.cat(contents), torch.cat(codes))
        return images.chunk(2)


class StyleEncoder(nn.Sequential):
    """Images [B, 3, H, W] to style codes [B, style]. It does not normalise: that would remove the
    means and variances that a style consists of."""

    def __init__(self, config: MunitNetworks) -> None:
        layers: list[nn.Module] = [ConvBlock(3, config.width, 7)]
        channels = config.width
        for level in range(config.style_downs):
            after = 2 * channels if level < 2 else channels
            layers.append(ConvBlock(channels, after, 4, 2))
            channels = after
        layers += [PixelMean(), nn.Conv2d(channels, config.style, 1), nn.Flatten()]
        super().__init__(*layers)


class StyledDecoder(nn.Module):
    """A content code [B, C, h, w] and a style code [B, style] to images [B, 3, H, W]."""

    def __init__(self, config: MunitNetworks) -> None:
        super().__init__()
        hidden = config.hidden
        self.style = nn.Sequential(LinearBlock(config.style, hidden), LinearBlock(hidden, hidden))
        channels = config.width * 2**config.downs
        self.blocks = nn.ModuleList(StyledBlock(channels, hidden) for _ in range(config.blocks))
        self.up = Upsampling(config.width, config.downs)

    def forward(self, content: Tensor, code: Tensor) -> Tensor:
        """The images, from -1 to 1."""
        style = self.style(code)
        for block in self.blocks:
            content = block(content, style)
        images: Tensor = self.up(content)
        return images


class StyledBlock(nn.Module):
    """A residual block with AdaIN: x [B, C, H, W] and style [B, S] to [B, C, H, W]."""

    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            ReflectConv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(AdaptiveInstanceNorm(channels, style) for _ in range(2))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """The same shape."""
        hidden = self.norms[0](self.convs[0](x), style).relu()
        out: Tensor = x + self.norms[1](self.convs[1](hidden), style)
        return out
