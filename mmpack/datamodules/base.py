"""What all data modules share: loaders by split, sizes that must divide, and a state that Lightning can save too.

They are Lightning data modules where Lightning is installed, and plain classes that work alike where it is not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic

from mmpack import state as states
from mmpack.batch import B
from mmpack.errors import ConfigError
from mmpack.loader import PackLoader, StreamFactory
from mmpack.loader.equal import Exchange, torch_exchange


class Plain:
    """In the place of Lightning's data module where there is no Lightning."""

    trainer: Any = None


def lightning_class() -> type:
    """``LightningDataModule`` of the Lightning that the process uses, or that is installed; `Plain` without one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if name in sys.modules]
    installed = [name for name in names if find_spec(name.partition(".")[0]) is not None]
    for name in used + installed:
        try:
            __import__(name)
        except ImportError as error:
            warnings.warn(f"{name} is installed and cannot be imported ({error}); going on without it", stacklevel=2)
            continue
        found: type = sys.modules[name].LightningDataModule
        return found
    return Plain


if TYPE_CHECKING:

    class _Base:
        trainer: Any

else:
    _Base = lightning_class()


class LoaderForTrainer(Generic[B]):
    """The batches of a loader for a Lightning Trainer, which would save a loader's own state.

    That state would be of the batch fetched last and of one rank alone; the data module's is the right one. The methods
    are there because Lightning warns of loaders without them.
    """

    def __init__(self, loader: PackLoader[B]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[B]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the data module's state has it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class PackDataModule(_Base, Generic[B]):
    """Loaders of packed (or padded) image-text samples, under the names of Lightning's data modules.

    Args:
        micro_batch_size: samples of one step on one rank; 1 where a pack is one.
        global_batch_size: the same of one optimizer step over all ranks; None for one micro batch a rank.
        num_workers: processes that read, encode and decode; 0 reads in the training process.
        num_val_workers: the same for validation and test; None for `num_workers`.
        prefetch: packs that each worker prepares ahead.
        data_parallel_rank, data_parallel_size: None asks Megatron-core or torch.distributed, here and, under a
            Trainer, again when it sets the module up; without them it is 0 of 1.
        cap_workers: more workers than streams are no error, but as many as there are streams.
    """

    def __init__(
        self,
        *,
        micro_batch_size: int,
        global_batch_size: int | None,
        num_workers: int,
        num_val_workers: int | None = None,
        prefetch: int = 2,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        cap_workers: bool = True,
    ) -> None:
        super().__init__()
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size={micro_batch_size}; it must be at least 1")
        if num_val_workers is not None and num_val_workers < 0:
            raise ConfigError(f"num_val_workers={num_val_workers}; it must be at least 0")
        self.micro_batch_size, self._asked_global_batch_size = micro_batch_size, global_batch_size
        self.num_workers = num_workers
        self.num_val_workers = num_workers if num_val_workers is None else num_val_workers
        self.prefetch, self._cap_workers = prefetch, cap_workers
        self._asked_place = (data_parallel_rank, data_parallel_size)
        self._find_place()

    def _find_place(self) -> None:
        """Notes rank and size, and checks that the batch sizes divide."""
        self.rank, self.world_size = data_parallel(*self._asked_place)
        per_step = self.micro_batch_size * self.world_size
        size = per_step if self._asked_global_batch_size is None else self._asked_global_batch_size
        if size < 1 or size % per_step:
            fitting = max(per_step, size // per_step * per_step)
            raise ConfigError(
                f"global_batch_size={size} is not a multiple of micro_batch_size={self.micro_batch_size} x "
                f"{self.world_size} data-parallel ranks; set it to {fitting} or {fitting + per_step}, or choose "
                "another micro_batch_size"
            )
        self.global_batch_size = size
        self.gradient_accumulation_steps = size // per_step

    def factory(self, split: str, *, training: bool = False) -> StreamFactory[B]:
        """Opens the logical streams of ``train``, ``val`` or ``test``: shuffled for ever if `training`, else once."""
        raise NotImplementedError

    def _open_train(self) -> None:
        """To be called at the end of `__init__`: what is wrong with the training data is said there."""
        self._train = self._loader(self.factory("train", training=True), training=True)

    def _loader(self, factory: StreamFactory[B], *, training: bool) -> PackLoader[B]:
        workers, most = self.num_workers if training else self.num_val_workers, factory.num_streams // self.world_size
        if self._cap_workers or not training:
            workers = min(workers, most)
        return PackLoader(
            factory,
            rank=self.rank,
            world_size=self.world_size,
            num_workers=workers,
            prefetch=self.prefetch,
            restart=not training,
            exchange=self._exchange(),
        )

    @property
    def pack_capacity(self) -> int | None:
        """Tokens that a training pack holds at most; None where batches are rows of samples."""
        return self._train.pack_capacity

    def _exchange(self) -> Exchange | None:
        """How ranks that are processes of one job agree on the length of an epoch."""
        if self._asked_place != (None, None) or self.world_size == 1:
            return None
        megatron = _megatron()
        return torch_exchange(None if megatron is None else megatron.get_data_parallel_group())

    def prepare_data(self) -> None:
        """Nothing to prepare: the data is where the arguments say."""

    def setup(self, stage: str | None = None) -> None:
        """Finds this process's rank, which under a Trainer is known only now. May be called any number of times."""
        before = (self.rank, self.world_size)
        self._find_place()
        if (self.rank, self.world_size) != before:
            self._train = self._loader(self._train.factory, training=True)

    def _for_trainer(self, loader: PackLoader[B]) -> Any:
        return loader if getattr(self, "trainer", None) is None else LoaderForTrainer(loader)

    def train_dataloader(self) -> Any:
        """Packs of the training data: the same `mmpack.loader.PackLoader` every time."""
        self._train.confirming = getattr(self, "trainer", None) is not None
        return self._for_trainer(self._train)

    def val_dataloader(self) -> Any:
        """Packs of the validation data: every sample once, the same every time."""
        return self._for_trainer(self._loader(self.factory("val"), training=False))

    def test_dataloader(self) -> Any:
        """Packs of the test data: every sample once, the same every time."""
        return self._for_trainer(self._loader(self.factory("test"), training=False))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Lightning's hook: notes which pack is being trained on, since Lightning fetches one ahead."""
        if getattr(getattr(self, "trainer", None), "training", False):
            self._train.confirm(batch)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where training stands in the data: plain values, to be saved with the model.

        Under a Trainer it is the state of all ranks together, so all of them must call it, as Trainer does.
        """
        state = self._train.state_dict()
        if self.world_size == 1 or getattr(self, "trainer", None) is None:
            return state
        return _gathered(state, self.rank)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind the pack that the state was saved after. Raises StateError if it does not fit."""
        self._train.load_state_dict(state_dict)


def data_parallel(rank: int | None, size: int | None) -> tuple[int, int]:
    """The place among the data-parallel ranks: as given, or Megatron-core's, or torch.distributed's, or alone.

    Raises:
        ConfigError: a size without a rank, where nothing says which rank this is: all would read the same.
    """
    if size is not None and size < 1:
        raise ConfigError(f"data_parallel_size={size}; it must be at least 1")
    if rank is not None and size is not None:
        return rank, size
    own_rank, own_size = _process_place()
    if rank is not None:
        return rank, own_size
    if size is None or size == own_size:
        return own_rank, own_size
    if size == 1:
        return 0, 1
    raise ConfigError(
        f"data_parallel_size={size} without data_parallel_rank, and this process is rank {own_rank} of {own_size}: "
        "give both, or neither"
    )


def _process_place() -> tuple[int, int]:
    """Data-parallel rank and size of this process, as Megatron-core or torch.distributed know them."""
    megatron = _megatron()
    if megatron is not None:
        return megatron.get_data_parallel_rank(), megatron.get_data_parallel_world_size()
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _megatron() -> Any:
    """Megatron-core's `parallel_state`, if this process has set it up: what trains with it has imported it."""
    module = sys.modules.get("megatron.core.parallel_state")
    return module if module is not None and module.model_parallel_is_initialized() else None


def _gathered(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """One state from those of all processes; processes of one data-parallel rank count once."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (rank, state))
    by_rank = dict(reversed(gathered))
    return states.merge([by_rank[each] for each in sorted(by_rank)])
