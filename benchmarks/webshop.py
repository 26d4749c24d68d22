"""WebShop: agreement with the original, an audit of every goal, speed, start-up and memory.

    python benchmarks/webshop.py --data FOLDER            # all of it, on the official 1000-product files
    python benchmarks/webshop.py --part speed             # without data: the generated shop
    python benchmarks/webshop.py --data FOLDER --part startup --copies 100

Prints one JSON object. "golden" needs golden_search.json and golden_rewards.json beside the data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turncredit.envs.webshop import ShopConfig, WebShopEnv, WebShopSuite, goal_from_record, load_shop, purchase_reward
from turncredit.envs.webshop.data import data_files, iter_json_array

PARTS = ("golden", "audit", "speed", "startup")


def golden(folder: Path) -> dict[str, Any]:
    """Rewards equal to the original's, and queries with its top ten and its whole ranking."""
    shop = load_shop(ShopConfig(data=str(folder), cache_dir=None))
    cases = json.loads((folder / "golden_rewards.json").read_text(encoding="utf-8"))
    equal = 0
    for case in cases:
        judged = purchase_reward(
            shop.products[case["asin"]],
            goal_from_record(case["goal"]),
            case["options"],
            shop.nouns,
            price=case["price"],
            strict_original=True,
        )
        equal += judged.value == case["reward"] and judged.parts() == case["info"]
    queries = json.loads((folder / "golden_search.json").read_text(encoding="utf-8"))["queries"]
    ours = {query: [asin for asin, _ in shop.index.scored(query)] for query in queries}
    wanted = {query: [asin for asin, _ in hits] for query, hits in queries.items()}
    return {
        "rewards_equal": f"{equal} of {len(cases)}",
        "top_10_equal": f"{sum(ours[query][:10] == wanted[query][:10] for query in queries)} of {len(queries)}",
        "top_50_equal": f"{sum(ours[query] == wanted[query] for query in queries)} of {len(queries)}",
    }


def audit(folder: Path | None) -> dict[str, Any]:
    """Every goal played with its own product, and where a search ranks that product."""
    suite = WebShopSuite(ShopConfig(data=folder and str(folder), cache_dir=None))
    shop, env = suite.shop, WebShopEnv(suite.shop)
    won, failed, longest = 0, [], 0
    ranks: dict[str, list[int]] = {"title": [], "query": [], "query and attributes": [], "whole instruction": []}
    for split in ("train", "eval", "test"):
        for task in suite.tasks(split):
            goal = suite.goal(task)
            for name, text in (
                ("title", goal.name),
                ("query", goal.query),
                ("query and attributes", " ".join((goal.query, *goal.attributes))),
                ("whole instruction", goal.instruction),
            ):
                hits = shop.index.search(text.lower())
                ranks[name].append(hits.index(goal.asin) + 1 if goal.asin in hits else 0)
            try:
                actions = suite.walkthrough(task)
            except ValueError:
                failed.append(task.id)
                continue
            env.reset(task.id)
            results = [env.step(action) for action in actions]
            won += results[-1].success
            longest = max(longest, len(actions))
    strict = sum(
        purchase_reward(shop.products[goal.asin], goal, dict(goal.options), shop.nouns, strict_original=True).value
        != 1.0
        for goal in shop.goals.values()
    )
    count = len(shop.goals)
    shares = {
        name: {
            "first": share(places, 1),
            "top_10": share(places, 10),
            "top_50": share(places, 50),
            "median_where_found": sorted(place for place in places if place)[sum(map(bool, places)) // 2],
        }
        for name, places in ranks.items()
    }
    in_train = {goal.asin for goal in shop.split("train")}
    seen = {name: sum(goal.asin in in_train for goal in shop.split(name)) for name in ("eval", "test")}
    return {
        "goals": count,
        "won_by_walkthrough": won,
        "not_found_by_title": len(failed),
        "longest_walkthrough": longest,
        "below_1_in_strict_mode": strict,
        "target_rank": shares,
        "held_out_goals_whose_product_is_in_train": seen,
    }


def share(places: list[int], within: int) -> float:
    """Share of places from 1 to `within`; 0 stands for not found."""
    return round(sum(0 < place <= within for place in places) / len(places), 4)


def speed(folder: Path | None, seconds: float = 10.0) -> dict[str, Any]:
    """Steps a second in one process: episodes of a scripted shopper, fresh words in every search."""
    suite = WebShopSuite(ShopConfig(data=folder and str(folder), cache_dir=None))
    shop, env = suite.shop, WebShopEnv(suite.shop)
    tasks, rng, steps, episodes = suite.tasks("train"), random.Random(0), 0, 0
    words = sorted({word for goal in shop.goals.values() for word in goal.instruction.split()})
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        task = tasks[rng.randrange(len(tasks))]
        env.reset(task.id)
        query = f"{suite.goal(task).query} {' '.join(rng.sample(words, 3))}"
        result = env.step(f"search[{query}]")
        steps += 1
        for _ in range(12):
            clicks = [action for action in result.observation.admissible_actions if action != "click[back to search]"]
            result = env.step(rng.choice(clicks))
            steps += 1
            if result.done:
                break
        episodes += 1
    elapsed = time.perf_counter() - start
    return {"steps_per_second": round(steps / elapsed), "episodes": episodes, "steps": steps}


def replicate(folder: Path, copies: int, target: Path) -> None:
    """Write a catalogue of `copies` times the products, each copy under ids of its own."""
    files = data_files(folder)
    attributes = json.loads(files.attributes.read_text(encoding="utf-8"))
    number, extra = 0, {}
    with open(target / "items_shuffle_x.json", "w", encoding="utf-8") as out:
        out.write("[")
        for _ in range(copies):
            for record in iter_json_array(files.products):
                asin = f"X{number:09d}"
                extra[asin] = attributes.get(record["asin"], {})
                out.write((", " if number else "") + json.dumps({**record, "asin": asin}))
                number += 1
        out.write("]")
    (target / "items_ins_v2_x.json").write_text(json.dumps(extra), encoding="utf-8")
    if files.nouns is not None:
        (target / "title_nouns.json").write_text(files.nouns.read_text(encoding="utf-8"), encoding="utf-8")


def memory() -> tuple[float, float]:
    """(resident, peak) memory of this process in MiB."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def child(folder: str, cache: str) -> dict[str, Any]:
    """What one fresh process needs to load a shop and to answer."""
    before = memory()[0]
    start, cpu = time.perf_counter(), time.process_time()
    shop = load_shop(ShopConfig(data=folder, cache_dir=cache))
    loaded, cpu = time.perf_counter() - start, time.process_time() - cpu
    resident, peak = memory()
    goals = list(shop.goals.values())
    queries = [goal.instruction.lower() for goal in goals[:: max(1, len(goals) // 200)]]
    start = time.perf_counter()
    for query in queries:
        shop.index.scored(query)
    return {
        "products": len(shop.products),
        "goals": len(goals),
        "load_seconds": round(loaded, 2),
        "load_cpu_seconds": round(cpu, 2),
        "resident_mib": round(resident - before),
        "peak_mib": round(peak),
        "search_ms": round(1000 * (time.perf_counter() - start) / len(queries), 2),
    }


def startup(folder: Path, copies: int) -> dict[str, Any]:
    """Fresh processes on the catalogue and on a replicated one, without and with a stored index."""
    report = {}
    with tempfile.TemporaryDirectory() as temporary:
        large = Path(temporary) / "large"
        large.mkdir()
        replicate(folder, copies, large)
        for name, data in (("as_is", folder), (f"{copies}_copies", large)):
            for pass_name in ("index_built", "index_stored"):
                command = [sys.executable, __file__, "--child", str(data), str(Path(temporary) / "cache")]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                report[f"{name}, {pass_name}"] = json.loads(answer.stdout)
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the official files; default: the generated shop")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all that the data allows")
    parser.add_argument("--copies", type=int, default=100, help="for startup: how often the catalogue is replicated")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child)))
        return
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "golden": lambda: golden(options.data),
        "audit": lambda: audit(options.data),
        "speed": lambda: speed(options.data),
        "startup": lambda: startup(options.data, options.copies),
    }
    chosen = options.part or (PARTS if options.data else ("audit", "speed"))
    if options.data is None and {"golden", "startup"} & set(chosen):
        parser.error("golden and startup need --data FOLDER")
    print(json.dumps({name: parts[name]() for name in chosen}, indent=2))


if __name__ == "__main__":
    main()
