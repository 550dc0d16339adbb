"""The PyTorch front end: its objects as a job's state, and `wrap`, `Sampler` and `Loader` for a loop that exists."""

from meshmend.job.frameworks.torch.data import Loader as Loader
from meshmend.job.frameworks.torch.data import Rows as Rows
from meshmend.job.frameworks.torch.data import Sampler as Sampler
from meshmend.job.frameworks.torch.data import is_dataset as is_dataset
from meshmend.job.frameworks.torch.data import tensors as tensors
from meshmend.job.frameworks.torch.loop import wrap as wrap
from meshmend.job.frameworks.torch.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
from meshmend.job.frameworks.torch.state import TorchState as TorchState
