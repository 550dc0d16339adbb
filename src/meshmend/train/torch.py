"""PyTorch's models, optimizers and schedulers as a job's state, and a lane as PyTorch computes it.

A lane gives the same whoever computes it, and whatever was computed before it on the same worker: it begins with no
gradients, with the buffers (batch-norm statistics) of the last commit, and with random numbers that depend on seed,
step and lane. What is summed over lanes is

    grads      of every parameter, zeros where this lane gave it none
    found      1 for each parameter that has a gradient: where nobody found one, `.grad` is None on every worker
    buffers    how much the lane changed them: each takes the average of the lanes' changes
    metrics    what the function returned

State dicts travel as arrays by name, and all that is no tensor (rates, betas, counts) as JSON in an array: no pickle.
"""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.train.held import Held, Leaves
from meshmend.train.job import Job, samples
from meshmend.train.loop import Sampler as Sampler
from meshmend.train.loop import wrap as wrap
from meshmend.train.wire import leaves_of, rebuilt

try:
    import torch
except ImportError:
    raise ImportError("mm.torch needs PyTorch: pip install 'meshmend[torch]'") from None

REST = "objects"
"""The leaf that holds all that is no tensor."""


class TorchState(Held):
    """What `job.share(model, optimizer, …)` holds; at least one of the objects is a module."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        self.objects = objects if len(objects) > 1 else objects[0]
        self._named = dict(zip(_names(objects), objects, strict=True))
        modules = {name: one for name, one in self._named.items() if isinstance(one, torch.nn.Module)}
        if not modules:
            raise JobError(f"{', '.join(self._named)} was shared without a model: share the torch.nn.Module too")
        # Tied weights are one parameter of two names: the first name stands for both.
        self._every: dict[str, Any] = {}
        self._buffers: dict[str, tuple[Any, str]] = {}
        self._constants: dict[str, tuple[Any, str]] = {}
        self._fixed: list[str] = []
        seen: set[int] = set()
        for name, module in modules.items():
            persistent = set(module.state_dict(keep_vars=True))
            for path, value in [*module.named_parameters(), *module.named_buffers()]:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                where, _, key = path.rpartition(".")
                if isinstance(value, torch.nn.Parameter):
                    self._every[f"{name}.{path}"] = value
                elif path in persistent and value.dtype != torch.bool and not value.is_complex():
                    self._buffers[f"{name}.{path}"] = module.get_submodule(where), key
                else:
                    self._constants[f"{name}.{path}"] = module.get_submodule(where), key
                    if path in persistent or value.dtype == torch.bool:
                        self._fixed.append(f"{name}.{path}")
        self._check_optimizers()
        self._trained = [name for name, value in self._every.items() if value.requires_grad]
        for name in self._trained:
            if self._every[name].is_complex():
                raise JobError(
                    f"{name!r} is complex, and such gradients are not summed: keep it as two real parameters"
                )
        self._generators: Any = None
        self._tensors: list[bool] = []
        self.commit()

    def _check_optimizers(self) -> None:
        known = {id(value) for value in self._every.values()}
        for name, one in self._named.items():
            if isinstance(one, torch.optim.Optimizer) and any(
                id(value) not in known for group in one.param_groups for value in group["params"]
            ):
                raise JobError(f"{name} has parameters that are in no shared model: share the model that holds them")

    def commit(self) -> None:
        """Keep the buffers of now, which lanes will change, and list the arrays."""
        live = self._live()
        self._kept = {name: value.detach().clone() for name, value in live.items()}
        swaps = {id(value): self._kept[name] for name, value in live.items()}
        listing = _Listing(swaps)
        rest = {name: listing.described(_dict_of(one), name) for name, one in self._named.items()}
        text = np.frombuffer(json.dumps(rest, separators=(",", ":")).encode(), np.uint8)
        self._leaves = [*listing.leaves, (REST, text)]

    def leaves(self) -> Leaves:
        """Parameters as they are, and copies of the buffers: other threads may read them while a lane is computed."""
        return self._leaves

    def adopt(self, leaves: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load state dicts made of these arrays, and prove that they arrived."""
        rest = json.loads(bytes(leaves[REST]))
        if rest.keys() != self._named.keys():
            raise JobError(
                f"a state of {', '.join(rest)} came, but this worker shares {', '.join(self._named)}: all workers must "
                "run the same script"
            )
        for name, one in self._named.items():
            found = _restored(rest[name], leaves)
            if isinstance(one, torch.nn.Module):
                found = OrderedDict(found)
                setattr(found, "_metadata", getattr(one.state_dict(), "_metadata", {}))  # noqa: B010
            try:
                one.load_state_dict(found)
            except (RuntimeError, ValueError, KeyError) as error:
                raise JobError(
                    f"the {name} that came does not fit this worker's ({error}): all workers must run the same script"
                ) from error
        self.commit()
        for name, mine in self._leaves:
            if name not in leaves or mine.tobytes() != leaves[name].tobytes():
                raise JobError(f"{name!r} is not the same after load_state_dict: its class must load what it saves")

    def begin(self, key: Sequence[int]) -> None:
        """No gradients, the buffers of the last commit, and random numbers of this lane's own."""
        self._clear()
        if self._generators is None:
            self._generators = _generators()
        _seed(key)

    def end(self, metrics: Any) -> Any:
        """The lane's tree; the user's random numbers go on where they were."""
        self._random_again()
        odd = [name for name, value in self._every.items() if value.grad is not None and name not in self._trained]
        if odd:
            raise JobError(f"{odd[0]!r} was frozen when it was shared, but has a gradient: share it with requires_grad")
        grads = {name: self._every[name].grad for name in self._trained}
        live = self._live()
        changes = {name: _change(live[name].detach(), self._kept[name]) for name in self._buffers}
        for name in self._fixed:
            if not torch.equal(live[name], self._kept[name]):
                kind = "truth values" if live[name].dtype == torch.bool else "complex numbers"
                raise JobError(f"buffer {name!r} of {kind} was changed in a lane: it has no average")
        found = leaves_of(metrics)
        self._tensors = [isinstance(value, torch.Tensor) for _, value in found]
        values = [_metric(value) for _, value in found]
        return {
            "grads": {name: _grad(grads[name], self._every[name]) for name in self._trained},
            "found": np.array([grads[name] is not None for name in self._trained], np.float32),
            "buffers": {name: change.to("cpu").numpy() for name, change in changes.items()},
            "metrics": rebuilt(metrics, values),
        }

    def drop(self) -> None:
        """As it was before the lane."""
        self._clear()
        self._random_again()

    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """Fill `.grad`, and move each buffer by the average of its changes."""
        self._clear()
        divisor = np.float32(lanes)
        for name, count in zip(self._trained, total["found"], strict=True):
            parameter = self._every[name]
            if count > 0:
                grad = total["grads"][name]
                grad = torch.from_numpy(np.asarray(grad / divisor) if mean else grad)
                parameter.grad = grad.to(parameter.device, parameter.dtype)
        live = self._live()
        with torch.no_grad():
            for name in self._buffers:
                old, change = live[name], torch.from_numpy(np.asarray(total["buffers"][name] / divisor))
                change = (change if old.is_floating_point() else change.round()).to(old.device, old.dtype)
                old.copy_(torch.where(change == 0, old, old + change))  # -0.0 + 0.0 would be 0.0
        self._kept.update({name: live[name].detach().clone() for name in self._buffers})
        values = [np.asarray(value / divisor) if mean else value for _, value in leaves_of(total["metrics"])]
        values = [torch.from_numpy(v) if was else v for v, was in zip(values, self._tensors, strict=True)]
        return rebuilt(total["metrics"], values)

    def _live(self) -> dict[str, Any]:
        """The buffers that modules hold now: some modules put another tensor in the old one's place."""
        return {name: one._buffers[key] for name, (one, key) in {**self._buffers, **self._constants}.items()}

    def _clear(self) -> None:
        for parameter in self._every.values():
            parameter.grad = None
        with torch.no_grad():
            for name, value in self._live().items():
                value.copy_(self._kept[name])

    def _random_again(self) -> None:
        if self._generators is not None:
            _set_generators(self._generators)
            self._generators = None


class Loader(Sampler):
    """The job's data for a wrapped loop, read ahead by other processes: takes the place of sampler and `DataLoader`.

    They read the lanes that this worker will most likely compute. What turns out to be wanted by nobody is dropped, and
    what nobody has read, such as a lane of a dead worker, is read here. Either way a sample drawn with random numbers
    is the same, because they depend on seed, step and lane. `options` are those of `DataLoader`.
    """

    def __init__(self, job: Job, num_workers: int = 2, **options: Any) -> None:
        super().__init__(job)
        self._options = {"num_workers": num_workers, **options}

    def __iter__(self) -> Iterator[Any]:
        drawn, emitted = _Seeded(self._job), deque[tuple[int, int]]()
        ahead = torch.utils.data.DataLoader(
            drawn, batch_size=None, sampler=_Forecast(self, emitted), collate_fn=_as_it_is, **self._options
        )
        pipe = iter(ahead)
        for _ in super().__iter__():
            lane = self.loop.lane
            assert lane is not None, "it was begun just now"
            wanted = self._job.step, lane
            while emitted and emitted[0] < wanted:
                emitted.popleft()
                next(pipe)
            if emitted and emitted[0] == wanted:
                emitted.popleft()
                yield next(pipe)
            else:
                kept = _generators()
                found = drawn[wanted]
                _set_generators(kept)
                yield found


class _Forecast:
    """The lanes that this worker will most likely be asked for in this epoch: the same ones as last."""

    def __init__(self, loader: Loader, emitted: deque[tuple[int, int]]) -> None:
        self._loader, self._emitted = loader, emitted

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(self._loader.loop.done, self._loader.bounds()[1]):
            for lane in self._loader._job._link.mine:
                self._emitted.append((step, lane))
                yield step, lane


class _Seeded:
    """Samples by step and lane, drawn with random numbers of that lane's own."""

    def __init__(self, job: Job) -> None:
        self._lanes, self._data = job._lanes, job._data

    def __getitem__(self, place: tuple[int, int]) -> Any:
        _seed((self._lanes.seed, *place, 1))
        return samples(self._data, self._lanes.ids(*place))


def _as_it_is(batch: Any) -> Any:
    return batch


class Rows:
    """A dataset that gives one sample at a time, as one that can be asked for many: `collate` puts them together."""

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, ids: Sequence[int]) -> Any:
        if isinstance(self._dataset, torch.utils.data.TensorDataset):
            return [column[torch.as_tensor(ids)] for column in self._dataset.tensors]
        return self._collate([self._dataset[int(one)] for one in ids])


def is_dataset(data: Any) -> bool:
    """Whether this is one of PyTorch's datasets."""
    return isinstance(data, torch.utils.data.Dataset)


class _Listing:
    """State dicts as arrays by name, and what is left as JSON that tells them apart."""

    def __init__(self, swaps: Mapping[int, Any]) -> None:
        self.leaves: Leaves = []
        self._swaps = swaps
        self._known: dict[Any, str] = {}
        self._alive: list[Any] = []

    def described(self, value: Any, path: str) -> Any:
        """A value as JSON: `["tensor", leaf, type]`, and so on for all that JSON cannot say itself."""
        if isinstance(value, torch.Tensor):
            return ["tensor", self._leaf(value, path), str(value.dtype).removeprefix("torch.")]
        if isinstance(value, (np.ndarray, np.generic)):
            return ["array", self._leaf(torch.from_numpy(np.array(value)), path)]
        if isinstance(value, dict):
            # Sorted, so that the order in which two workers came to the same entries does not matter.
            items = sorted(value.items(), key=lambda item: (str(type(item[0])), item[0]))
            kind = "counter" if isinstance(value, Counter) else "dict"
            return [kind, *([self.described(k, path), self.described(v, f"{path}.{k}")] for k, v in items)]
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, *(self.described(one, f"{path}.{number}") for number, one in enumerate(value))]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise JobError(
            f"{path} of the shared state is a {type(value).__name__}, which cannot be given to another worker: keep "
            "tensors, numbers, text, lists and dicts in state_dict"
        )

    def _leaf(self, tensor: Any, path: str) -> str:
        tensor = self._swaps.get(id(tensor), tensor).detach()
        self._alive.append(tensor)
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if tensor.numel() == 0 or place not in self._known:
            self.leaves.append((path, _array(tensor)))
            self._known[place] = path
            return path
        return self._known[place]


def _restored(value: Any, leaves: Mapping[str, npt.NDArray[Any]]) -> Any:
    """What a listing described."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "tensor":
        # Its own memory: some load_state_dict keep what they are given.
        return _tensor(np.array(leaves[rest[0]]), getattr(torch, rest[1]))
    if kind == "array":
        return np.array(leaves[rest[0]])[()]
    if kind in ("dict", "counter"):
        made = {_restored(key, leaves): _restored(one, leaves) for key, one in rest}
        return Counter(made) if kind == "counter" else made
    made_of = [_restored(one, leaves) for one in rest]
    return tuple(made_of) if kind == "tuple" else made_of


def _seed(key: Sequence[int]) -> None:
    seed = np.random.SeedSequence(key).generate_state(2, np.uint64)
    torch.manual_seed(int(seed[0] >> 1))
    np.random.seed(int(seed[1]) & 0xFFFFFFFF)
    random.seed(int(seed[1]))


def _generators() -> Any:
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), on_cuda, np.random.get_state(), random.getstate()


def _set_generators(states: Any) -> None:
    ours, on_cuda, numpys, pythons = states
    torch.set_rng_state(ours)
    if on_cuda is not None:
        torch.cuda.set_rng_state_all(on_cuda)
    np.random.set_state(numpys)
    random.setstate(pythons)


def _dict_of(one: Any) -> Any:
    return one.state_dict(keep_vars=True) if isinstance(one, torch.nn.Module) else one.state_dict()


def _names(objects: tuple[Any, ...]) -> list[str]:
    names: list[str] = []
    for one in objects:
        kinds = {"model": torch.nn.Module, "optimizer": torch.optim.Optimizer}
        name = next((name for name, kind in kinds.items() if isinstance(one, kind)), type(one).__name__.lower())
        same = sum(other.rstrip("0123456789") == name for other in names)
        names.append(f"{name}{same + 1}" if same else name)
    return names


def _array(tensor: Any) -> npt.NDArray[Any]:
    """A tensor's memory as numpy sees it; types that numpy has not are given as whole numbers of that size."""
    tensor = tensor.to("cpu").contiguous()
    try:
        found: npt.NDArray[Any] = tensor.numpy()
    except TypeError:
        found = tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.element_size()]).numpy()
    return found


def _tensor(array: npt.NDArray[Any], dtype: Any) -> Any:
    found = torch.from_numpy(array)
    return found if found.dtype == dtype else found.view(dtype)


def _change(live: Any, kept: Any) -> Any:
    """How much a lane changed a buffer: exactly nothing where it is the same, also where that is Inf or NaN."""
    if not live.is_floating_point():
        return live.to(torch.int64) - kept.to(torch.int64)
    same = (live == kept) | (live.isnan() & kept.isnan())
    return torch.where(same, 0.0, live - kept).to(torch.float32)


def _grad(grad: Any, parameter: Any) -> npt.NDArray[Any]:
    if grad is None:
        return np.zeros(parameter.shape, np.float32)
    dense = grad.detach().to_dense() if grad.is_sparse else grad.detach()
    found: npt.NDArray[Any] = dense.to("cpu", torch.float32).numpy()
    return found


def _metric(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    found = value.detach().to("cpu")
    return found.to(torch.float32).numpy() if found.is_floating_point() else found.numpy()
