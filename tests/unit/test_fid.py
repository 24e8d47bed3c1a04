"""FID, KID and LPIPS: distances of images by trained networks."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from support import lite0, paired, unpaired
from support.dcgan import dcgan
from support.training import CPU, curve
from torch import Tensor, nn
from torchmetrics.functional.image import lpips as their_lpips
from torchmetrics.image import fid as their_fid
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

from hpc_amp.config.checks import find_data
from hpc_amp.config.schema import from_plain
from hpc_amp.distributed.world import World
from hpc_amp.gan.config import FeatureDistance, PerceptualDistance
from hpc_amp.gan.fid import TrainedDistances, TrainedNetwork, fid, kid
from hpc_amp.gan.lpips import Lpips
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.spade.config import SpadeConfig
from hpc_amp.train.state import weights_digest

SIZE = (32, 32)
LITE0 = FeatureDistance(network="support.lite0:lite0", weights=lite0.WEIGHTS)


pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count: int, seed: int, *, noise: float = 0.0) -> Tensor:
    """Smooth random images [count, 3, 32, 32] from -1 to 1, of 256 levels, some with noise."""
    stream = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=stream)
    images = F.interpolate(coarse, SIZE, mode="bicubic")
    images = images.lerp(torch.rand(count, 3, *SIZE, generator=stream), noise)
    return images.mul(255).round().clamp(0, 255) / 127.5 - 1


def levels(images: Tensor) -> Tensor:
    """The pixels of a file, uint8."""
    return images.add(1).mul(127.5).round().byte()


def measured(config: FeatureDistance, real: Tensor, made: Tensor) -> dict[str, float]:
    """FID and KID of two sets, added in parts."""
    distances = TrainedDistances(config, SIZE, World(), CPU)
    for images, is_made in ((real, False), (made, True)):
        for part in images.split(13):
            distances.add("images", part, made=is_made)
    return distances.distances("images")


# -- FID and KID ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "error"), [(80, 1e-5), (20, 1e-3)])
def test_fid_is_that_of_torchmetrics(count: int, error: float) -> None:
    """In the features of a network that was trained on ImageNet. torchmetrics takes the root of
    eigenvalues of a product of covariances, which costs it digits if there are less images than
    features (64)."""
    real, made = pictures(count, 0), pictures(count + 10, 1, noise=0.2)
    network = lite0.lite0().eval()
    network.load_state_dict(torch.load(lite0.WEIGHTS, weights_only=True))
    theirs = their_fid.FrechetInceptionDistance(network, normalize=True, input_img_size=(3, *SIZE))
    with torch.no_grad():
        theirs.update(levels(real) / 255, real=True)
        theirs.update(levels(made) / 255, real=False)
    found = measured(LITE0, real, made)
    assert found == {"fid_lite0": pytest.approx(float(theirs.compute()), rel=error)}


def test_kid_is_that_of_torchmetrics() -> None:
    """With subsets of all images: which ones a smaller subset has is a matter of chance."""
    stream = torch.Generator().manual_seed(0)
    real, made = (torch.randn(30, 8, generator=stream).double() + shift for shift in (0, 0.3))
    features = nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it keeps all features
        theirs = KernelInceptionDistance(features, subsets=2, subset_size=30)
    theirs.update(real, real=True)
    theirs.update(made, real=False)
    assert kid(real, made, 2, 1000) == pytest.approx(float(theirs.compute()[0]), rel=1e-9)
    assert kid(real, made, 5, 20) == kid(real, made, 5, 20) != kid(real, made, 6, 20)


def test_both_grow_with_the_harm_done() -> None:
    config = FeatureDistance(network=LITE0.network, weights=LITE0.weights, kid_subsets=3)
    real = pictures(30, 0)
    found = [measured(config, real, pictures(30, 1, noise=noise)) for noise in (0.0, 0.1, 0.4)]
    assert measured(config, real, real)["fid_lite0"] == pytest.approx(0, abs=1e-4)
    for metric in ("fid_lite0", "kid_lite0"):
        values = [each[metric] for each in found]
        assert values == sorted(values) and values[2] > 5 * abs(values[0])


def test_fid_of_two_gaussians_is_the_closed_form() -> None:
    """For independent features: |m1 - m2|^2 plus the squared differences of the deviations. With
    less images than features too."""
    factor = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q[:, :8]
    plain = (factor - factor.mean(0)) * 39**0.5
    plain = plain @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(plain.T))).T
    deviation, other = torch.arange(1.0, 9).double(), torch.arange(9.0, 1, -1).double()
    distance = fid(plain * deviation, plain * other + 2)
    assert distance == pytest.approx(8 * 4 + float((deviation - other).square().sum()), rel=1e-12)
    wide = F.pad(plain, (0, 92))
    assert fid(wide, 3 * wide) == pytest.approx(8 * 4, rel=1e-12)


def test_images_that_are_no_numbers_have_no_distance() -> None:
    made = pictures(10, 1)
    made[3, 0, 0, 0] = math.nan
    found = measured(FeatureDistance(network=LITE0.network, kid_subsets=1), pictures(10, 0), made)
    assert set(found) == {"fid_lite0", "kid_lite0"} and all(map(math.isnan, found.values()))
    assert math.isnan(fid(torch.zeros(5, 2).double(), torch.zeros(1, 2).double()))
    assert math.isnan(kid(torch.zeros(5, 2).double(), torch.zeros(0, 2).double(), 1, 5))


def test_the_precision_of_the_training_has_no_effect() -> None:
    network, images = TrainedNetwork(LITE0, SIZE, CPU), pictures(5, 0)
    expected = network(images)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(network(images), expected)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[0])
    assert torch.backends.cudnn.allow_tf32 == before[1]


def test_grey_images_are_shown_in_three_channels() -> None:
    network, grey = TrainedNetwork(LITE0, SIZE, CPU), pictures(3, 0)[:, :1]
    assert torch.equal(network(grey), network(grey.repeat(1, 3, 1, 1)))


# -- Inception ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights for FID's Inception: the real ones cannot be downloaded here."""

    class Untrained(their_fid._FeatureExtractorInceptionV3):  # type: ignore[misc]
        def load_state_dict(self, state: Any) -> None:
            pass

    file = tmp_path_factory.mktemp("inception") / "inception.pth"
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        module = sys.modules["torch_fidelity.feature_extractor_inceptionv3"]
        patch.setattr(module, "load_state_dict_from_url", lambda *a, **k: {})
        torch.manual_seed(0)
        state = Untrained("inception-v3-compat", ["2048"]).state_dict()
    # As large as what comes in: with torch's initial weights, all images look the same at the end.
    torch.save({k: v * 2.4 if k.endswith("conv.weight") else v for k, v in state.items()}, file)
    return str(file)


@pytest.mark.parametrize("antialias", [False, True])
def test_inception_is_that_of_torchmetrics(
    inception_file: str, antialias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert their_fid.NoTrainInceptionV3.INPUT_IMAGE_SIZE == 299
    # The smallest that it takes: ours sees smaller images because it is theirs.
    monkeypatch.setattr(their_fid.NoTrainInceptionV3, "INPUT_IMAGE_SIZE", 75)
    images = pictures(2, 0)
    theirs = their_fid.NoTrainInceptionV3(
        "inception-v3-compat", ["2048"], inception_file, antialias=antialias
    )
    random = torch.random.get_rng_state()
    config = FeatureDistance(weights=inception_file, antialias=antialias)
    distances = TrainedDistances(config, SIZE, World(), CPU)
    ours = distances.network
    assert torch.equal(torch.random.get_rng_state(), random)
    expected = theirs(levels(images))
    assert expected.std(0).mean() > 1e-3 * expected.mean() > 0
    torch.testing.assert_close(ours(images), expected)
    assert ours.protocol["features"] == 2048
    assert ours.protocol["resize"].startswith("bilinear to 299x299, ")
    assert ours.protocol["resize"].endswith("antialiased" if not antialias else "antialiasing")
    for is_made in (False, True):
        distances.add("images", images[:1], made=is_made)
    assert list(distances.distances("images")) == ["fid"]
    digest = hashlib.sha256(Path(inception_file).read_bytes()).hexdigest()
    assert ours.protocol["weights_sha256"] == digest


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.write_text, (self.file, "harm")


def test_no_code_in_a_file_of_weights_is_run(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(pickle.dumps(Harm(tmp_path / "done"), 2))
    torch.save({"fc.bias": Harm(tmp_path / "done")}, tmp_path / "newer.pth")
    for name in ("weights.pth", "newer.pth"):
        config = FeatureDistance(weights=str(tmp_path / name))
        with pytest.raises(ModelError, match="cannot be read"):
            TrainedNetwork(config, SIZE, CPU)
    assert not (tmp_path / "done").exists()


# -- errors ---------------------------------------------------------------------------------------


def flat() -> nn.Module:
    return nn.Conv2d(3, 2, 3)


def picky() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 7))


def no_network() -> int:
    return 3


HERE = "unit_test_networks"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"network": "no_such_module:x"}, "no_such_module:x: No module named 'no_such_module'"),
        ({"network": f"{HERE}:absent"}, "has no attribute 'absent'"),
        ({"network": f"{HERE}:no_network"}, "returns a int instead of a torch.nn.Module"),
        ({"network": f"{HERE}:flat"}, "returns [2, 2, 30, 30] for two images, instead of"),
        ({"network": f"{HERE}:picky"}, "fails on images of 32 x 32 pixels: "),
        ({"network": f"{HERE}:flat", "weights": lite0.WEIGHTS}, "belong to another flat: "),
        ({"weights": lite0.WEIGHTS}, "belong to another network: "),
        ({"weights": "/no/such/file"}, "the weights in /no/such/file cannot be read: "),
    ],
)
def test_a_network_that_cannot_be_used_is_one_line(
    keys: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    with pytest.raises(ModelError) as caught:
        TrainedNetwork(FeatureDistance(**keys), SIZE, CPU)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_package_that_is_missing_is_one_line(
    inception_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FeatureDistance(weights=inception_file)
    with monkeypatch.context() as patch:
        patch.setattr(their_fid, "_TORCH_FIDELITY_AVAILABLE", False)
        with pytest.raises(ModelError, match=r"needs torch-fidelity.*'hpc-amp\[metrics\]'$"):
            TrainedNetwork(config, SIZE, CPU)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["torchmetrics"], "__version__", "1.7.4")
        with pytest.raises(ModelError, match=r"needs torchmetrics 1\.8 or newer: this is 1\.7\.4"):
            TrainedNetwork(config, SIZE, CPU)
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ModelError, match=r"evaluation\.fid needs torchmetrics.*\[metrics\]'$"):
        TrainedNetwork(config, SIZE, CPU)
    with pytest.raises(ModelError, match=r"evaluation\.lpips needs torchmetrics"):
        Lpips(PerceptualDistance(weights="x"), SIZE, CPU)


def test_what_validate_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(**evaluation: Any) -> list[tuple[str, str, bool]]:
        train = from_plain(SpadeConfig, {"evaluation": evaluation})
        found = [each for each in find_data(train) if each.key != "train.images"]
        return [(each.key, each.text, each.usable) for each in found]

    assert said() == []
    missing = str(tmp_path / "inception.pth")
    expected = ("train.evaluation.fid", f"there is no file {missing}", False)
    assert said(fid={"weights": missing}) == [expected]
    Path(missing).touch()
    assert said(fid={"weights": missing}, lpips={"weights": missing, "network": "vgg"}) == [
        ("train.evaluation.fid", f"inception with the weights in {missing}", True),
        ("train.evaluation.lpips", f"vgg with the weights in {missing}", True),
    ]
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    (found,) = said(fid={"network": "my.own:network"})
    text = "my.own:network; this Python has no torchmetrics, that of the job needs it"
    assert found == ("train.evaluation.fid", text, True)


# -- LPIPS ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alexnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layers_file(tmp_path_factory.mktemp("alexnet") / "alexnet.pth", "alexnet")


def layers_file(file: Path, name: str) -> Path:
    """A file with random weights of a network of torchvision, without its classifier."""
    features = without_weights(name).features.to_empty(device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for module in features.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
    torch.save({f"features.{k}": v for k, v in features.state_dict().items()}, file)
    return file


def without_weights(name: str) -> Any:
    """A network of torchvision. To draw the weights of its classifier would take a second."""
    with torch.device("meta"):
        return getattr(torchvision.models, name)(weights=None)


@pytest.mark.parametrize(("name", "model"), [("alex", "alexnet"), ("squeeze", "squeezenet1_1")])
def test_lpips_is_that_of_torchmetrics(
    name: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = layers_file(tmp_path / "weights.pth", model)
    ours = Lpips(PerceptualDistance(weights=str(file), network=name), SIZE, CPU)

    def local(net: str, pretrained: bool) -> nn.Module:
        """In the place of a download."""
        network = without_weights(net)
        network.load_state_dict(torch.load(file, weights_only=True), strict=False, assign=True)
        found: nn.Module = network.features
        return found

    monkeypatch.setattr(their_lpips, "_get_tv_model_features", local)
    theirs = LearnedPerceptualImagePatchSimilarity(name)
    images, others = pictures(4, 0), pictures(4, 1)
    found = ours(images, others)
    assert found.dtype == torch.float64 and found.shape == (4,) and found.min() > 1e-6
    assert float(found.mean()) == pytest.approx(float(theirs(images, others)), rel=1e-6)
    assert ours(images, images).abs().max() == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(images, others), found)


def test_lpips_says_what_is_wrong(alexnet: Path) -> None:
    weights = str(alexnet)
    with pytest.raises(ModelError, match="8 x 8 pixels are too small for alex"):
        Lpips(PerceptualDistance(weights=weights), (8, 8), CPU)
    with pytest.raises(ModelError, match="are not those of torchvision's squeeze: "):
        Lpips(PerceptualDistance(weights=weights, network="squeeze"), SIZE, CPU)


# -- in trainings ---------------------------------------------------------------------------------

FID = {"network": LITE0.network, "weights": LITE0.weights, "kid_subsets": 2}


def test_a_training_reports_them_with_their_protocol(tmp_path: Path, alexnet: Path) -> None:
    """And is the same as without them."""
    evaluation = {"fid": FID, "lpips": {"weights": str(alexnet)}}
    size = {"image_size": [32], "synthetic": {"train": 8, "test": 4}}
    plain = paired.paired(tmp_path / "plain", "spade", images=size, epochs=1)
    made = paired.paired(tmp_path / "run", "spade", images=size, epochs=1, evaluation=evaluation)
    plain.fit()
    made.fit()
    assert weights_digest(plain.networks) == weights_digest(made.networks)
    more = {"fid_lite0", "kid_lite0", "lpips"}
    assert set(made.metrics) == set(plain.metrics) | more
    assert plain.metrics == {name: made.metrics[name] for name in plain.metrics}
    assert all(math.isfinite(made.metrics[name]) for name in more)
    assert not (tmp_path / "plain" / "protocol.json").exists()
    written = json.loads((tmp_path / "run" / "protocol.json").read_text())
    assert written["step"] == 1 and written["metrics"] == made.metrics
    assert set(written["protocol"]) == {"fid", "lpips"}
    counts = {"real": 4, "generated": 4, "kid_subset_size": 4}
    assert written["protocol"]["fid"]["images"] == {"images": counts}
    assert written["protocol"]["fid"]["kid_subsets"] == 2
    assert written["protocol"]["lpips"]["network"] == "alex"


def test_translations_have_one_for_each_domain(tmp_path: Path, alexnet: Path) -> None:
    """And MUNIT the diversity of what it makes of an image."""
    evaluation = {"fid": FID, "lpips": {"weights": str(alexnet)}, "styles": 3}
    images = {"image_size": [32], "synthetic": {"train": 8, "test": 4, "styles": 2}}
    made = unpaired.unpaired(tmp_path, "munit", images=images, epochs=1, evaluation=evaluation)
    made.fit()
    metrics = made.metrics
    assert metrics["fid_lite0"] == pytest.approx(
        (metrics["fid_lite0_a"] + metrics["fid_lite0_b"]) / 2
    )
    assert {"kid_lite0_a", "lpips_diversity_a", "lpips_diversity_b"} <= set(metrics)
    assert metrics["lpips_diversity_a"] > 0
    counts = json.loads((tmp_path / "protocol.json").read_text())["protocol"]["fid"]["images"]
    assert counts["a"] == {"real": 4, "generated": 12, "kid_subset_size": 4}


def test_a_dcgan_has_them_too(tmp_path: Path) -> None:
    made = dcgan(tmp_path, epochs=1, evaluation={"fid": FID})
    made.fit()
    assert set(made.metrics) == {"frechet_random", "fid_lite0", "kid_lite0"}
    assert curve(tmp_path, "eval/fid_lite0")[-1][1] == made.metrics["fid_lite0"]
