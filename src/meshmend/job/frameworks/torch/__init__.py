"""The PyTorch front end: the five words for its objects, and `wrap`, `Sampler` and `Loader` for a loop that exists."""

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("mm.torch needs PyTorch: pip install 'meshmend[torch]'") from None

from meshmend.job.frameworks.torch.dataset import Rows as Rows
from meshmend.job.frameworks.torch.dataset import is_dataset as is_dataset
from meshmend.job.frameworks.torch.loader import Loader as Loader
from meshmend.job.frameworks.torch.loop import Sampler as Sampler
from meshmend.job.frameworks.torch.loop import wrap as wrap
from meshmend.job.frameworks.torch.state import TorchState as TorchState
