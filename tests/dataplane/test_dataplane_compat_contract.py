"""Whether the installed vLLM is the one that the plugin was written for."""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request
from vllm_contract import CONTRACT, Item, Override, complaints, names_of, owner_of

import dataplane
from dataplane.queue import ClassRequestQueue

SOURCES = sorted(Path(dataplane.__path__[0]).rglob("*.py"))


def item(name: str, owner: str) -> Item:
    (found,) = (each for each in CONTRACT if each.name == name and each.owner.endswith(owner))
    return found


def test_this_vllm_has_all_that_the_plugin_touches() -> None:
    missing = complaints(CONTRACT)
    assert not missing, "\n".join(missing)


def test_the_queue_has_all_that_vllm_asks_of_one() -> None:
    asked = RequestQueue.__abstractmethods__
    assert asked == {each.name for each in CONTRACT if each.owner.endswith(":RequestQueue")}
    assert not ClassRequestQueue.__abstractmethods__


def touched(tree: ast.Module, variables: set[str]) -> Iterator[str]:
    """Names of the attributes that a module uses of what it has in these variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in variables:
            yield node.attr


@pytest.mark.parametrize(
    ("owner", "variables"),
    [
        (AsyncScheduler, {"self", "super()", "scheduler", "self._scheduler"}),
        (Request, {"request", "victim"}),
    ],
)
def test_the_contract_names_what_the_plugin_touches_and_nothing_else(
    owner: type, variables: set[str]
) -> None:
    texts = [source.read_text(encoding="utf-8") for source in SOURCES]
    trees = [ast.parse(text) for text in texts if owner is Request or "vllm.v1.core" in text]
    used = set(chain.from_iterable(touched(tree, variables) for tree in trees))
    named = {each.name for each in CONTRACT if owner_of(each) is owner}
    assert (used & names_of(owner)) - {"__init__"} == named


class Bare:
    """A class of vLLM's that has lost everything."""


class Changed:
    """A scheduler of a vLLM to come."""

    def schedule(self) -> None: ...

    def _preempt_request(self, request: object, drop_stale_output: bool, cause: str) -> None: ...  # noqa: FBT001 - vLLM's style


@pytest.mark.parametrize("each", CONTRACT, ids=lambda each: f"{each.owner}.{each.name}")
def test_a_vllm_that_lost_an_item_is_told_what_for(each: Item) -> None:
    (complaint,) = each.complaints(Bare)
    assert complaint.startswith("vLLM ")
    assert f"Bare.{each.name} is gone: the plugin {each.why}" in complaint


def test_a_changed_parameter_is_named() -> None:
    (lost,) = item("schedule", "AsyncScheduler").complaints(Changed)
    assert lost.endswith(
        "Changed.schedule lost its parameter `throttle_prefills`: "
        "the plugin orders and times each step there"
    )
    preempt = item("_preempt_request", "AsyncScheduler").complaints(Changed)
    assert [
        complaint.partition("_preempt_request ")[2].partition(":")[0] for complaint in preempt
    ] == [
        "lost its parameter `timestamp`",
        "gained a parameter `cause`",
    ]


def test_a_class_that_is_gone_is_named() -> None:
    (complaint,) = complaints((Override("vllm.v1.request:Gone", "x", "needs it", ()),))
    assert "vllm.v1.request:Gone is gone" in complaint
