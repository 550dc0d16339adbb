"""The PyTorch front end: the five words for its objects, and `wrap`, `Sampler` and `Loader` for a loop that exists."""

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("mm.torch needs PyTorch: pip install 'meshmend[torch]'") from None

from meshmend.train.torch.ahead import Loader as Loader
from meshmend.train.torch.dataset import Rows as Rows
from meshmend.train.torch.dataset import is_dataset as is_dataset
from meshmend.train.torch.loop import Sampler as Sampler
from meshmend.train.torch.loop import wrap as wrap
from meshmend.train.torch.state import TorchState as TorchState
