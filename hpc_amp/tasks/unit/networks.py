"""The generator of UNIT (Liu, Breuel & Kautz, 2017): two autoencoders with one latent space."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpc_amp.gan.layers import ResidualBlock, initialize
from hpc_amp.gan.translation import Direction, Domain, Downsampling, Translator, Upsampling
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.unit.config import UnitNetworks


class UnitGenerator(Translator):
    """An image is encoded to the mean of a normal distribution with variance 1 in the latent space,
    [B, width * 2**downs, H / 2**downs, W / 2**downs]. Each decoder makes an image of its domain
    from it: the decoder of the same domain reconstructs the image, and the other one translates it.

    The last blocks of the encoders and the first ones of the decoders are the same for both
    domains, so that a latent vector means the same in both.
    """

    def __init__(self, config: UnitNetworks) -> None:
        super().__init__()
        own = config.blocks - config.shared
        if own < 0:
            raise ModelError(f"shared: {config.shared} is more than blocks, {config.blocks}")
        self.multiple = 2**config.downs
        self.channels = config.width * self.multiple
        self.encoders, self.decoders = nn.ModuleDict(), nn.ModuleDict()
        for domain in ("a", "b"):
            self.encoders[domain] = Downsampling(config.width, config.downs, own)
            blocks = [ResidualBlock(self.channels) for _ in range(own)]
            self.decoders[domain] = nn.Sequential(*blocks, Upsampling(config.width, config.downs))
        self.to_shared, self.from_shared = (
            nn.Sequential(*(ResidualBlock(self.channels) for _ in range(config.shared)))
            for _ in range(2)
        )
        initialize(self, "kaiming")

    def translate(
        self, images: Tensor, direction: Direction, style: Tensor | None = None
    ) -> Tensor:
        """See `Translator.translate`. There is one translation of an image, so `style` is None."""
        if style is not None:
            raise ModelError("UNIT has no styles: leave the style out, or use MUNIT")
        self.check_size(images.shape[2], images.shape[3])
        made: Tensor = self("translation", images, direction)
        return made

    def swap(self, a: Tensor, b: Tensor, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """`b_in_a` and `a_in_b`, as `_all` makes them."""
        made: dict[str, Tensor] = self("swapped", a, b, noise)
        return made

    def _translation(self, images: Tensor, direction: Direction) -> Tensor:
        source, target = direction.split("2")
        return self._decode(target, self._encode(source, images))  # type: ignore[arg-type]

    def _swapped(self, a: Tensor, b: Tensor, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        latent_a = _sample(self._encode("a", a), noise["a"])
        latent_b = _sample(self._encode("b", b), noise["b"])
        return {"b_in_a": self._decode("a", latent_b), "a_in_b": self._decode("b", latent_a)}

    def _all(self, a: Tensor, b: Tensor, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """Everything that the losses need, of images [B, 3, H, W] of both domains: latent means
        `mean_a`, `mean_b`; the images again, `a_again`, `b_again`; translations `a_in_b`, `b_in_a`
        with the latent means `mean_ab`, `mean_ba` that they have; and their translations back,
        `a_back`, `b_back`. `noise` has normal numbers of the latent shape for `a`, `b`, `ab` and
        `ba`."""
        mean_a, mean_b = self._encode("a", a), self._encode("b", b)
        latent_a, latent_b = _sample(mean_a, noise["a"]), _sample(mean_b, noise["b"])
        a_again, b_in_a = self._decode("a", torch.cat([latent_a, latent_b])).chunk(2)
        b_again, a_in_b = self._decode("b", torch.cat([latent_b, latent_a])).chunk(2)
        mean_ab, mean_ba = self._encode("b", a_in_b), self._encode("a", b_in_a)
        return {
            "mean_a": mean_a,
            "mean_b": mean_b,
            "a_again": a_again,
            "b_again": b_again,
            "a_in_b": a_in_b,
            "b_in_a": b_in_a,
            "mean_ab": mean_ab,
            "mean_ba": mean_ba,
            "a_back": self._decode("a", _sample(mean_ab, noise["ab"])),
            "b_back": self._decode("b", _sample(mean_ba, noise["ba"])),
        }

    def _encode(self, domain: Domain, images: Tensor) -> Tensor:
        mean: Tensor = self.to_shared(self.encoders[domain](images))
        return mean

    def _decode(self, domain: Domain, latent: Tensor) -> Tensor:
        images: Tensor = self.decoders[domain](self.from_shared(latent))
        return images


def _sample(mean: Tensor, noise: Tensor) -> Tensor:
    """A latent vector from its distribution, in the type of the mean."""
    return mean + noise.to(mean.dtype)
