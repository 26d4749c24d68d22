"""The shop: catalogue, goals, search index and nouns, loaded once per process and shared by its episodes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .data import DATA_VARIABLE, Product, build_products, data_files, iter_json_array
from .generator import generate_catalogue
from .goals import SHUFFLE_SEED, Goal, GoalSet, build_goals, split_ranges
from .nouns import TitleNouns, title_nouns
from .pages import PAGE_SIZE, Page, item_page, results_page, sub_page
from .prefixes import prefixed_search
from .reward import Reward, purchase_reward
from .search import SearchIndex, default_cache_dir


@dataclass(frozen=True)
class ShopConfig:
    """Where a shop's data comes from; picklable, and equal configurations share one shop per process.

    Args:
        data: folder with the official files; None reads ``WEBSHOP_DATA``, and without that generates a shop.
        goals: ``"synthetic"`` or ``"human"``.
        num_products: read only so many records of the catalogue; None reads all.
        nouns: noun file in place of the folder's own ``title_nouns.json``.
        spacy_model: spaCy model for titles the noun file lacks; None uses a word rule.
        strict_original: behave like the original in every detail, faults included: draw the prices of ranges and the
            price limits from one stream, compare a synthetic goal's options as name-value pairs, and list products for
            queries that begin with ``<q>``, ``<c>``, ``<a>`` or ``<r>`` (see `prefixed_search`).
        seed: of that stream and of the ``<r>`` search, and of nothing else.
        shuffle_seed: of the goals' order; leave it, or the splits are not the published ones.
        generated_products, generated_seed: of the generated shop.
        cache_dir: folder for search indexes; ``"auto"`` is the user's cache folder, None keeps them in memory.
    """

    data: str | None = None
    goals: GoalSet = "synthetic"
    num_products: int | None = None
    nouns: str | None = None
    spacy_model: str | None = None
    strict_original: bool = False
    seed: int = 0
    shuffle_seed: int = SHUFFLE_SEED
    generated_products: int = 400
    generated_seed: int = 0
    cache_dir: str | None = "auto"

    @property
    def folder(self) -> str | None:
        """The data folder in force; None stands for the generated shop."""
        return self.data or os.environ.get(DATA_VARIABLE) or None


class Shop:
    """An immutable shop.

    Args:
        products: the catalogue.
        goals: goals with ids, in order.
        nouns: nouns of titles.
        strict_original, seed: see `ShopConfig`.
        cache_dir: see `SearchIndex`.
    """

    def __init__(
        self,
        products: Iterable[Product],
        goals: Iterable[Goal],
        nouns: TitleNouns,
        *,
        strict_original: bool = False,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.products = {product.asin: product for product in products}
        self.goals = {goal.id: goal for goal in goals}
        self.nouns = nouns
        self.strict_original = strict_original
        self.seed = seed
        self.index = SearchIndex(list(self.products.values()), cache_dir)
        self.item_page = lru_cache(maxsize=4096)(self._item_page)
        self.sub_page = lru_cache(maxsize=4096)(self._sub_page)
        self.results_page = lru_cache(maxsize=4096)(self._results_page)
        self._prefixed = lru_cache(maxsize=256)(self._list_products)

    def split(self, name: str) -> list[Goal]:
        """The goals of a split ("train", "eval", "test"), in order.

        Raises:
            ValueError: there is no such split.
        """
        ranges = split_ranges(len(self.goals))
        if name not in ranges:
            raise ValueError(f"split: name must be one of {sorted(ranges)}, got {name!r}; choose one of them")
        goals = list(self.goals.values())
        return [goals[position] for position in ranges[name]]

    def goal(self, task_id: str) -> Goal:
        """The goal of a task id.

        Raises:
            KeyError: there is no such goal.
        """
        if task_id not in self.goals:
            raise KeyError(
                f"goal: task_id must name a goal of this shop, got {task_id!r} among {len(self.goals)} goals; "
                "take it from WebShopSuite.tasks(split)"
            )
        return self.goals[task_id]

    def reward(self, asin: str, goal: Goal, options: Mapping[str, str]) -> Reward:
        """Judge the purchase of `asin` with `options` for `goal`."""
        return purchase_reward(self.products[asin], goal, options, self.nouns, strict_original=self.strict_original)

    def hits(self, query: str) -> tuple[str, ...]:
        """Ids of the products that a search brings up, in the order of the results' pages."""
        listed = self._prefixed(query) if self.strict_original and query.startswith("<") else None
        return self.index.search(query) if listed is None else listed

    def _list_products(self, query: str) -> tuple[str, ...] | None:
        return prefixed_search(list(self.products.values()), query, self.seed)

    def _results_page(self, query: str, page: int) -> Page:
        hits = self.hits(query)
        shown = hits[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        return results_page([self.products[asin] for asin in shown], page, len(hits))

    def _item_page(self, asin: str) -> Page:
        return item_page(self.products[asin])

    def _sub_page(self, asin: str, name: str) -> Page:
        return sub_page(self.products[asin], name)


def load_shop(config: ShopConfig | None = None) -> Shop:
    """The shop of a configuration; the same object for equal configurations within a process.

    Raises:
        FileNotFoundError: a file of the data folder is missing.
        ValueError: the data is empty or malformed.
        ImportError: an extra is missing.
    """
    config = config or ShopConfig()
    return _load(config, config.folder, str(default_cache_dir()) if config.cache_dir == "auto" else config.cache_dir)


@lru_cache(maxsize=4)
def _load(config: ShopConfig, folder: str | None, cache_dir: str | None) -> Shop:
    rng = random.Random(config.seed) if config.strict_original else None
    if folder is None:
        records, attributes = generate_catalogue(config.generated_products, config.generated_seed)
        human: Any = {}
        nouns_file = config.nouns
    else:
        files = data_files(folder)
        records, attributes = iter_json_array(files.products), _read(files.attributes)
        human = _read(files.human) if files.human is not None else {}
        nouns_file = config.nouns or (files.nouns and str(files.nouns))
    products = build_products(records, attributes, human, limit=config.num_products, rng=rng)
    goals = build_goals(products, config.goals, rng=rng, shuffle_seed=config.shuffle_seed)
    nouns = title_nouns(nouns_file, spacy_model=config.spacy_model, titles=(product.title for product in products))
    strict = config.strict_original
    return Shop(products, goals, nouns, strict_original=strict, seed=config.seed, cache_dir=cache_dir)


def _read(path: str | os.PathLike[str]) -> Any:
    with open(Path(path), encoding="utf-8") as handle:
        return json.load(handle)
