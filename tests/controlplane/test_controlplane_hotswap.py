import pytest

from controlplane.forecaster import Forecaster
from controlplane.hotswap import ChampionWatch
from controlplane.metrics import Metrics
from controlplane.publisher import Publisher
from controlplane.registry_thread import RegistryThread
from controlplane.store.sqlite import EventKind, SqliteStore
from models.bundle import Bundle
from models.classes import TaskClass
from models.errors import CorruptBundle, RegistryUnavailable
from models.succession import Action, Succession


class Shelf:
    """A registry in memory."""

    def __init__(self) -> None:
        self.champion: str | None = "1"
        self.problem: Exception | None = None
        self.corrupt: set[str] = set()
        self.loads: list[str] = []
        self.trail: tuple[Succession, ...] = ()

    def history(self) -> tuple[Succession, ...]:
        return self.trail

    def champion_version(self) -> str | None:
        if self.problem is not None:
            raise self.problem
        return self.champion

    def load(self, version: str) -> Bundle:
        self.loads.append(version)
        if version in self.corrupt:
            raise CorruptBundle(f"version {version} is damaged")
        return Bundle.untrained()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def forecaster(task_classes: tuple[TaskClass, ...]) -> Forecaster:
    return Forecaster(task_classes)


@pytest.fixture
def watch(
    shelf: Shelf, forecaster: Forecaster, publisher: Publisher, metrics: Metrics
) -> ChampionWatch:
    return ChampionWatch(
        registry=RegistryThread(lambda: shelf),
        forecaster=forecaster,
        publisher=publisher,
        metrics=metrics,
    )


async def test_new_champion_is_loaded_once_and_remembered(
    watch: ChampionWatch, shelf: Shelf, forecaster: Forecaster, store: SqliteStore
) -> None:
    await watch.poll()
    await watch.poll()
    shelf.champion = "2"
    await watch.poll()
    assert forecaster.serving_version == "2"
    assert shelf.loads == ["1", "2"]
    changes = [event.detail for event in store.events() if event.kind is EventKind.MODEL_CHANGED]
    assert changes == ["1", "2"]


async def test_store_tells_who_changed_the_champion_and_why(
    watch: ChampionWatch, shelf: Shelf, store: SqliteStore
) -> None:
    shelf.trail = (
        Succession("1", "2", "eve", "slow", "2026-01-01T00:00:00+00:00", Action.ROLL_BACK),
    )
    await watch.poll()
    (event,) = (event for event in store.events() if event.kind is EventKind.MODEL_CHANGED)
    assert (event.actor, event.detail) == ("eve", "1: roll_back: slow")


async def test_damaged_version_is_refused_once_and_the_serving_one_stays(
    watch: ChampionWatch, shelf: Shelf, forecaster: Forecaster, metrics: Metrics
) -> None:
    await watch.poll()
    shelf.champion, shelf.corrupt = "2", {"2"}
    await watch.poll()
    await watch.poll()
    assert forecaster.serving_version == "1"
    assert shelf.loads == ["1", "2"]
    assert metrics.champion_failures._value.get() == 1
    shelf.champion = "3"
    await watch.poll()
    assert forecaster.serving_version == "3"


async def test_registry_that_is_away_changes_nothing(
    watch: ChampionWatch, shelf: Shelf, forecaster: Forecaster, metrics: Metrics
) -> None:
    await watch.poll()
    shelf.problem = RegistryUnavailable("the store is locked")
    await watch.poll()
    await watch.poll()
    assert forecaster.serving_version == "1"
    assert metrics.champion_failures._value.get() == 2
    shelf.problem, shelf.champion = None, "2"
    await watch.poll()
    assert forecaster.serving_version == "2"


async def test_registry_that_opens_late_is_tried_again(
    shelf: Shelf, forecaster: Forecaster, publisher: Publisher, metrics: Metrics
) -> None:
    attempts = []

    def open_registry() -> Shelf:
        attempts.append(1)
        if len(attempts) < 3:
            raise RegistryUnavailable("not yet")
        return shelf

    watch = ChampionWatch(
        registry=RegistryThread(open_registry),
        forecaster=forecaster,
        publisher=publisher,
        metrics=metrics,
    )
    for _ in range(4):
        await watch.poll()
    assert forecaster.serving_version == "1"
    assert len(attempts) == 3


async def test_champion_that_is_taken_away_leaves_the_rule(
    watch: ChampionWatch, shelf: Shelf, forecaster: Forecaster
) -> None:
    await watch.poll()
    shelf.champion = None
    await watch.poll()
    assert forecaster.serving_version is None
