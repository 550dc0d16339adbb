"""Where the samples of a lane come from: `mm.data`. Pipelines of sources, maps and caches, in place of bare arrays."""

from meshmend.job.data.augment import random_crop as random_crop
from meshmend.job.data.pipeline import Data as Data
from meshmend.job.data.pipeline import arrays as arrays
from meshmend.job.data.pipeline import decode_image as decode_image
from meshmend.job.data.pipeline import images as images
from meshmend.job.data.pipeline import parquet as parquet
from meshmend.job.data.pipeline import rows as rows
from meshmend.job.data.pipeline import stream as stream
