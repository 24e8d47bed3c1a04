"""Mixed precision on native PyTorch: one precision policy, one loss scaler, and the functions of
apex.amp 1.0. `from hpc_amp import amp` replaces `from apex import amp`; docs/apex.md lists the
differences."""

from hpc_amp.amp.api import (
    check_ranks,
    disable_casts,
    grad_scaler_state_dict,
    init,
    load_state_dict,
    loss_scale,
    master_params,
    state_dict,
    stepped,
)
from hpc_amp.amp.initialization import initialize
from hpc_amp.amp.registry import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from hpc_amp.amp.scaled_loss import scale_loss
from hpc_amp.amp.scaler import ScaleFloorError
from hpc_amp.amp.state import reset

__all__ = [
    "ScaleFloorError",
    "check_ranks",
    "disable_casts",
    "float_function",
    "grad_scaler_state_dict",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "loss_scale",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "reset",
    "scale_loss",
    "state_dict",
    "stepped",
]
