"""The PyTorch front end: its objects as a job's state, and `wrap`, `Sampler` and `Loader` for a loop that exists."""

from meshmend.job.frameworks.torch.dataset import Rows as Rows
from meshmend.job.frameworks.torch.dataset import is_dataset as is_dataset
from meshmend.job.frameworks.torch.loader import Loader as Loader
from meshmend.job.frameworks.torch.loop import wrap as wrap
from meshmend.job.frameworks.torch.sampler import Sampler as Sampler
from meshmend.job.frameworks.torch.state import TorchState as TorchState
