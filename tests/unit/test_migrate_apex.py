"""`hpc-amp migrate` and the parts of apex: what it says about each, and `--to native`."""

from __future__ import annotations

import pytest
import torch

from hpc_amp import amp
from hpc_amp.migrate.apex_parts import EXTENSIONS, PARTS, part
from hpc_amp.migrate.finding import MigrationFinding
from hpc_amp.migrate.moves import APEX_AMP, APEX_AMP_API
from hpc_amp.migrate.scan import Target, scan


def found(text: str, rule: str, target: Target = "drop-in") -> list[MigrationFinding]:
    findings, _ = scan(text, "x.py", target, (2, 4))
    return [finding for finding in findings if finding.id == rule]


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
        ("FusedAdam(p, adam_w_mode=False, **o)", "weight_decay=... (default 0.0))"),
        ("FusedAdam", "torch.optim.AdamW, or torch.optim.Adam if adam_w_mode=False"),
        ("FusedSGD(p, 0.1)", "torch.optim.SGD with the same arguments"),
        ("FusedAdam(p, max_grad_norm=1.0)", "does not clip: call torch.nn.utils.clip_grad_norm_("),
        ("FusedAdam(p, max_grad_norm=args.clip)", "clip_grad_norm_(parameters, args.clip) before"),
        ("FusedAdam(p, bias_correction=False)", "torch always corrects the bias"),
        ("FusedLAMB(p)", "keep it"),
        ("FusedLARS(p)", "keep it, or use an optimizer of torch.optim"),
        ("FP16_Optimizer(o)", 'opt_level="O2") of hpc_amp.amp'),
    ],
)
def test_optimizers_have_twins_with_traps(call: str, instead: str) -> None:
    (finding,) = found(f"from apex.optimizers import *\nimport apex.optimizers as ao\nao.{call}\n",
                       "apex-optimizer")  # fmt: skip

    assert instead in finding.fix
    assert finding.fix.endswith("the state in checkpoints is not compatible")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("network_to_half", 'opt_level="O2"'),
        ("BN_convert_float", "keeps batch norm in fp32"),
        ("prep_param_lists", "amp.master_params(optimizer)"),
        ("master_params_to_model_params", "remove it"),
        ("to_python_float", "loss.item()"),
        ("DynamicLossScaler", "which replaces all of apex.fp16_utils"),
    ],
)
def test_fp16_utils_by_name(name: str, instead: str) -> None:
    (finding,) = found(
        f"from apex.fp16_utils import {name}\n{name}(x)\n",
        "apex-fp16-utils",
    )

    assert instead in finding.fix and not finding.mechanical


def test_what_is_called_on_an_fp16_optimizer() -> None:
    findings = found(
        "from apex.fp16_utils.fp16_optimizer import FP16_Optimizer\n"
        "opt = FP16_Optimizer(opt, static_loss_scale=128.0)\n"
        "opt.backward(loss)\nopt.clip_master_grads(1.0)\nopt.step()\nother.backward(loss)\n",
        "apex-fp16-utils",
    )

    assert [finding.line for finding in findings] == [2, 3, 4]
    assert "amp.scale_loss(loss, opt)" in findings[1].fix
    assert "amp.master_params(opt)" in findings[2].fix


def test_a_fused_adam_that_clips_nothing_loses_nothing() -> None:
    (finding,) = found(
        "from apex.optimizers import FusedAdam\n"
        "FusedAdam(p, max_grad_norm=0.0, bias_correction=True, eps_inside_sqrt=False)\n",
        "apex-optimizer",
    )

    assert finding.fix.startswith("torch.optim.AdamW(..., weight_decay=0.0); fused=True")


def test_a_lamb_clips_by_itself() -> None:
    (finding,) = found("import apex\napex.optimizers.FusedLAMB(p)\n", "apex-optimizer")

    assert "clips all gradients together at max_grad_norm, which is 1.0" in finding.what


# By the history of NVIDIA/apex.
HISTORY = {
    "apex still has it": [
        "normalization.FusedLayerNorm", "normalization.fused_layer_norm.FusedRMSNorm", "mlp.MLP",
        "fused_dense.FusedDense", "multi_tensor_apply.multi_tensor_applier",
        "optimizers.FusedAdam", "optimizers.FusedSGD", "optimizers.FusedLAMB",
        "optimizers.FusedNovoGrad", "optimizers.FusedAdagrad",
        "optimizers.FusedMixedPrecisionLamb", "contrib.optimizers.FP16_Optimizer",
        "contrib.optimizers.fp16_optimizer.FP16_Optimizer", "contrib.optimizers.FusedAdam",
        "contrib.optimizers.distributed_fused_adam.DistributedFusedAdam",
        "contrib.xentropy.SoftmaxCrossEntropyLoss", "contrib.layer_norm.FastLayerNorm",
        "contrib.clip_grad.clip_grad_norm_", "contrib.sparsity.ASP", "contrib.group_norm.GroupNorm",
        "contrib.groupbn.BatchNorm2d_NHWC", "contrib.transducer.TransducerLoss",
        "contrib.bottleneck.Bottleneck",
    ],
    "moved to apex.contrib.optimizers in October 2019": ["optimizers.FP16_Optimizer"],
    "removed from apex in June 2022": [
        "contrib.optimizers.distributed_fused_adam_v2.DistributedFusedAdamV2",
    ],
    "removed from apex in July 2022": [
        "pyprof.nvtx.init", "reparameterization.apply_weight_norm",
    ],
    "removed from apex in May 2025": [
        "parallel.LARC", "parallel.LARC.LARC", "parallel.SyncBatchNorm",
        "parallel.create_syncbn_process_group", "parallel.Reducer", "parallel.ReduceOp",
        "parallel.multiproc", "fp16_utils.network_to_half", "RNN.LSTM",
    ],
    "removed from apex in January 2026": [
        "transformer.parallel_state", "transformer.functional.FusedScaleMaskSoftmax",
    ],
    "removed from apex in July 2026": [
        "contrib.multihead_attn.SelfMultiheadAttn", "contrib.fmha.FMHAFun",
        "contrib.gpu_direct_storage.GDSFile",
    ],
    "check whether your apex has it": ["contrib.thing", "nothing"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "name"), [(state, name) for state, names in HISTORY.items() for name in names]
)
def test_what_apex_still_has(state: str, name: str) -> None:
    findings, _ = scan(f"import apex\napex.{name}(x)\n", "x.py", "drop-in", (2, 4))

    assert state in findings[0].what.replace("was removed", "removed")


def test_every_part_says_what_apex_has_of_it() -> None:
    told = [name for names in HISTORY.values() for name in names]
    states = {part(f"apex.{name}").state for name in told}

    assert {one.state for one in (*PARTS.values(), *EXTENSIONS.values())} == states
    assert {one.state for one in PARTS.values() if one.gone} == {
        state for state in HISTORY if state.startswith(("removed", "moved"))
    }


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("apex.normalization.FusedLayerNorm(8)", "torch.nn.LayerNorm"),
        ("apex.normalization.fused_layer_norm.FusedRMSNorm(8)", "torch.nn.RMSNorm"),
        ("apex.parallel.Reducer(m)", "torch.distributed.all_reduce"),
        ("apex.parallel.SyncBatchNorm(8)", "torch.nn.SyncBatchNorm"),
        ("apex.contrib.multihead_attn.SelfMultiheadAttn(8)", "scaled_dot_product_attention"),
        ("apex.contrib.xentropy.SoftmaxCrossEntropyLoss(x)", "ignore_index=0"),
        ("apex.contrib.thing", "the equivalent in torch"),
    ],
)
def test_the_rest_of_apex(code: str, instead: str) -> None:
    (finding,) = found(f"import apex\n{code}\n", "apex-other")

    assert instead in finding.fix


def test_an_unused_import_of_what_is_gone_says_that_it_fails() -> None:
    (gone,) = found("from apex.parallel import LARC\n", "apex-unused")
    (there,) = found("from apex.optimizers import FusedAdam\n", "apex-unused")

    assert gone.what.endswith("it was removed from apex in May 2025: the import fails")
    assert there.what.endswith("this file does not use it")


@pytest.mark.parametrize(
    "text",
    [
        "import amp_C\nmulti_tensor_applier(amp_C.multi_tensor_l2norm, buffer, [grads], False)\n",
        "try:\n    import amp_C\nexcept ImportError: ...\n",
        "import apex_C\nflat = apex_C.flatten(grads)\n",
    ],
)
def test_compiled_parts_of_apex_are_told(text: str) -> None:
    (finding,) = found(text, "apex-extension")

    assert "apex still has it" in finding.what and "torch._" in finding.fix


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("from apex import amp\namp._amp_state.loss_scalers[0]._loss_scale = 2**20", "to set it"),
        ("from apex.amp import _amp_state as s\ns.loss_scalers[0].loss_scale()", "amp.loss_scale("),
        (
            "from apex.amp._amp_state import _amp_state\n_amp_state.opt_properties.enabled",
            "arguments",
        ),
        ("from apex.amp._amp_state import maybe_print\nmaybe_print('x')", "print(...)"),
        ("from apex import amp\namp.compat.x()", "amp.stepped(optimizer)"),
    ],
)
@pytest.mark.parametrize("target", ["drop-in", "native"])
def test_what_is_inside_of_apex_amp_has_an_answer(code: str, instead: str, target: Target) -> None:
    (finding,) = found(code + "\n", "apex-amp-name", target)

    assert finding.line == 2 and instead in finding.fix


def test_what_sets_a_scale_is_what_the_advice_says() -> None:
    model = torch.nn.Linear(2, 2)
    try:
        amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O2", verbosity=0)
        state = amp.state_dict()
        state["loss_scaler0"]["loss_scale"] = 2.0**20
        amp.load_state_dict(state)
        assert amp.loss_scale(0) == 2.0**20
    finally:
        amp.reset()


def test_master_params_from_the_inside_is_the_documented_one() -> None:
    _, new = scan(
        "from apex.amp._amp_state import master_params\nclip(master_params(o))\n",
        "x.py", "drop-in", (2, 4),
    )  # fmt: skip

    assert new == "from hpc_amp.amp import master_params\nclip(master_params(o))\n"


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
    assert [(f.line, f.id) for f in findings] == [
        (line, "apex-to-native") for line in (1, 2, 3, 5, 6, 7)
    ]
    says = [finding.fix for finding in findings]
    assert 'scaler = torch.amp.GradScaler("cuda")' in says[1] and "torch.autocast" in says[1]
    assert "scaler.scale(loss).backward()" in says[2] and "scaler.update()" in says[2]
    assert "scaler.unscale_(optimizer)" in says[3]
    assert says[4] == "scaler.state_dict()"


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ("'O0'", "plain fp32"),
        ("'O2'", "there is no native equivalent; use hpc_amp.amp"),
        ("args.opt_level", "if the level is O1"),
    ],
)
def test_native_says_what_a_level_means(level: str, says: str) -> None:
    text = WHOLE.format(package="apex", level=level)

    assert says in found(text, "apex-to-native", "native")[1].fix


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

    assert [finding.id for finding in findings] == [
        "apex-to-native",
        "apex-old-api",
        "apex-amp-name",
    ]
