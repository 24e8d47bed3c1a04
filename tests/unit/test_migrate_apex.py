"""`hpc-amp migrate` and the parts of apex: what it says about each, and `--to native`."""

from __future__ import annotations

import pytest

from hpc_amp import amp
from hpc_amp.migrate.finding import Finding
from hpc_amp.migrate.moves import APEX_AMP, APEX_AMP_API
from hpc_amp.migrate.scan import Target, scan


def found(text: str, rule: str, target: Target = "drop-in") -> list[Finding]:
    findings, _ = scan(text, "x.py", target, (2, 4))
    return [finding for finding in findings if finding.rule == rule]


def test_the_drop_in_has_every_name_that_is_changed() -> None:
    assert [name for name in APEX_AMP_API if not callable(getattr(amp, name))] == []
    assert {move.new for move in APEX_AMP.values()} == {
        "hpc_amp.amp",
        *(f"hpc_amp.amp.{name}" for name in APEX_AMP_API),
    }


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("FusedAdam(p)", "torch.optim.AdamW(..., weight_decay=0.0)"),
        ("FusedAdam(p, 0.1, weight_decay=wd)", "torch.optim.AdamW(..., weight_decay=wd)"),
        ("FusedAdam(p, adam_w_mode=False)", "torch.optim.Adam(..., weight_decay=0.0)"),
        ("FusedAdam(p, adam_w_mode=w)", "torch.optim.AdamW if w else torch.optim.Adam("),
        ("FusedAdam(p, adam_w_mode=False, **o)", "weight_decay=... (0.0 unless given))"),
        ("FusedAdam", "torch.optim.AdamW, or torch.optim.Adam where adam_w_mode=False"),
        ("FusedSGD(p, 0.1)", "torch.optim.SGD with the same arguments"),
        ("FusedLAMB(p)", "keep it"),
        ("FusedLARS(p)", "keep it, or take one of torch.optim"),
    ],
)
def test_optimizers_have_twins_with_traps(call: str, instead: str) -> None:
    (finding,) = found(f"from apex.optimizers import *\nimport apex.optimizers as ao\nao.{call}\n",
                       "apex-optimizer")  # fmt: skip

    assert instead in finding.instead
    assert finding.instead.endswith("checkpoints do not carry over")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("network_to_half", 'opt_level="O2"'),
        ("BN_convert_float", "keeps batch norm in fp32 by itself"),
        ("prep_param_lists", "amp.master_params(optimizer)"),
        ("master_params_to_model_params", "leave it out"),
        ("to_python_float", "loss.item()"),
        ("DynamicLossScaler", "which does all that apex.fp16_utils"),
    ],
)
def test_fp16_utils_by_name(name: str, instead: str) -> None:
    (finding,) = found(
        f"from apex.fp16_utils import {name}\n{name}(x)\n",
        "apex-fp16-utils",
    )

    assert instead in finding.instead and not finding.mechanical


def test_what_is_called_on_an_fp16_optimizer() -> None:
    findings = found(
        "from apex.fp16_utils.fp16_optimizer import FP16_Optimizer\n"
        "opt = FP16_Optimizer(opt, static_loss_scale=128.0)\n"
        "opt.backward(loss)\nopt.clip_master_grads(1.0)\nopt.step()\nother.backward(loss)\n",
        "apex-fp16-utils",
    )

    assert [finding.line for finding in findings] == [2, 3, 4]
    assert "amp.scale_loss(loss, opt)" in findings[1].instead
    assert "amp.master_params(opt)" in findings[2].instead


@pytest.mark.parametrize(
    ("code", "message", "instead"),
    [
        ("apex.normalization.FusedLayerNorm(8)", "apex still has it", "torch.nn.LayerNorm"),
        ("apex.normalization.fused_layer_norm.FusedRMSNorm(8)", "still", "torch.nn.RMSNorm"),
        ("apex.parallel.Reducer(m)", "removed in May 2025", "torch.distributed.all_reduce"),
        ("apex.parallel.SyncBatchNorm(8)", "apex still has it", "torch.nn.SyncBatchNorm"),
        ("apex.contrib.xentropy", "is for you to see", "what torch has"),
    ],
)
def test_the_rest_of_apex(code: str, message: str, instead: str) -> None:
    (finding,) = found(f"import apex\n{code}\n", "apex-other")

    assert message in finding.message and instead in finding.instead


WHOLE = """\
from {package} import amp
model, optimizer = amp.initialize(model, optimizer, opt_level={level})
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
clip(amp.master_params(optimizer))
torch.save({{"amp": amp.state_dict()}}, path)
amp.load_state_dict(old)
"""


@pytest.mark.parametrize("package", ["apex", "hpc_amp"])
def test_native_explains_every_use_and_changes_none(package: str) -> None:
    text = WHOLE.format(package=package, level="'O1'")
    findings, new = scan(text, "x.py", "native", (2, 4))

    assert new == text
    assert [(f.line, f.rule) for f in findings] == [
        (line, "apex-to-native") for line in (1, 2, 3, 5, 6, 7)
    ]
    says = [finding.instead for finding in findings]
    assert 'scaler = torch.amp.GradScaler("cuda")' in says[1] and "torch.autocast" in says[1]
    assert "scaler.scale(loss).backward()" in says[2] and "scaler.update()" in says[2]
    assert "scaler.unscale_(optimizer)" in says[3]
    assert says[4] == "scaler.state_dict()"


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ("'O0'", "plain fp32"),
        ("'O2'", "nothing native; stay with hpc_amp.amp"),
        ("args.opt_level", "where the level is O1"),
    ],
)
def test_native_says_what_a_level_means(level: str, says: str) -> None:
    text = WHOLE.format(package="apex", level=level)

    assert says in found(text, "apex-to-native", "native")[1].instead


def test_native_still_changes_what_is_the_same_there() -> None:
    text = (
        "import apex, torch\ntorch.cuda.amp.GradScaler()\napex.parallel.convert_syncbn_model(m)\n"
    )
    _, new = scan(text, "x.py", "native", (2, 4))

    assert new == (
        'import torch\ntorch.amp.GradScaler("cuda")\n'
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(m)\n"
    )


def test_native_reports_inner_parts_and_the_oldest_api_too() -> None:
    text = "from apex import amp\nhandle = amp.init()\namp._amp_state.verbosity\n"
    findings, _ = scan(text, "x.py", "native", (2, 4))

    assert [finding.rule for finding in findings] == [
        "apex-to-native",
        "apex-old-api",
        "apex-amp-name",
    ]
