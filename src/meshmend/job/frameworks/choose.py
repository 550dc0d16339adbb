"""Which framework a state belongs to, by what the script has loaded and given."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.env import state_place
from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import Framework
from meshmend.job.frameworks.weights import Weights, weights_of


def framework_of(state: tuple[Any, ...]) -> Framework:
    """What holds the state that was given to `job.share`: one tree of arrays, or PyTorch objects."""
    able = [hasattr(one, "state_dict") and hasattr(one, "load_state_dict") for one in state]
    if "torch" not in sys.modules or not any(able):
        if len(state) != 1:
            raise JobError(f"job.share got {len(state)} states; give it one tree of arrays, and pass warm= by keyword")
        return _tree_state(state[0])
    if not all(able):
        odd = state[able.index(False)]
        raise JobError(
            f"job.share got a {type(odd).__name__} together with PyTorch objects; give it only objects that have "
            "state_dict and load_state_dict, and pass warm= by keyword"
        )
    from meshmend.job.frameworks.torch import TorchState
    from meshmend.job.frameworks.torch.device import DeviceTorchState, devices_of

    devices = devices_of(state)
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        print(
            f"the shared model is on {names}, so its gradients are summed on the host; one device is faster", flush=True
        )
    elif devices and stays_on(next(iter(devices)).type):
        return DeviceTorchState(state)
    return TorchState(state)


def sharded_among(state: tuple[Any, ...]) -> Any:
    """The optimizer of PyTorch among these objects whose updates are to be sharded, if there is one."""
    if "torch" not in sys.modules:
        return None
    from meshmend.job.frameworks.torch.sharded_optimizer import ShardedOptimizer

    return next((one for one in state if isinstance(one, ShardedOptimizer)), None)


def sharded_framework_of(state: tuple[Any, ...], optimizer: Any) -> Weights:
    """What holds the weights of a job that shards its updates."""
    if optimizer is None:
        return weights_of(state)
    from meshmend.job.frameworks.torch.weights import TorchWeights

    return TorchWeights(state, optimizer)


def _tree_state(tree: Any) -> Framework:
    if "jax" in sys.modules:
        from meshmend.job.frameworks.jax.state import JaxState, device_of, is_spread

        if stays_on(device_of(tree)) or (is_spread(tree) and state_place() != "host"):
            return JaxState(tree)
    return TreeState(tree)


def stays_on(device: str) -> bool:
    """Whether a state on such a device stays there: by default if it is an accelerator."""
    return bool(device) and state_place() != "host" and (device != "cpu" or state_place() == "device")


def array_of(value: Any) -> Any:
    """An array as numpy has it: of a tensor of PyTorch too, wherever that is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def as_given(array: npt.NDArray[Any], like: Any) -> Any:
    """An array as the script works with them: where it gave a tensor of PyTorch, one that collects a gradient."""
    if "torch" in sys.modules and isinstance(like, sys.modules["torch"].Tensor):
        return sys.modules["torch"].from_numpy(array).to(like.device).requires_grad_()
    return array


def source_of(data: Any) -> Any:
    """Return data that yields several samples at once: PyTorch's datasets return one at a time."""
    if "torch" in sys.modules:
        from meshmend.job.frameworks.torch import Rows, is_dataset

        if is_dataset(data):
            return Rows(data)
    return data
