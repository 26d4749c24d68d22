"""The embedded default: an invented country of short encyclopedia entries, and questions of one to three hops.

Everything follows from a seed. Towns lie in regions and on rivers, people are born in towns and have trades, guilds are
founded by people and seated in towns; each is one passage. A question of kind ``lookup`` needs one passage, ``bridge``
two or three in a chain, ``comparison`` two side by side.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from .data import Question
from .retrieval import Document

SOURCE = "generated"
KINDS = ("lookup", "bridge", "comparison")
TRADES = (
    "astronomer",
    "baker",
    "beekeeper",
    "botanist",
    "cartographer",
    "clockmaker",
    "composer",
    "glassblower",
    "mason",
    "painter",
    "potter",
    "printer",
    "shipwright",
    "surgeon",
    "tailor",
    "weaver",
)
REGIONS = ("Northmarch", "Saltcoast", "Highfell", "Greenvale", "Eastreach", "Ironwold")
RIVERS = ("Auden", "Brisk", "Cald", "Dunmer", "Evel", "Fenna", "Garrow", "Hask")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_PERSON = (
    _words("Al Bar Cor Del Em Fal Gar Hol Is Jor Kel Lor Mar Nor Os Per Quil Ros Sil Tor Ul Ver Wil Yar Zan"),
    _words("a eno ila une"),
    _words("bek dra fin rin tas wyn"),
)
_TOWN = (
    _words("Amber Birch Cinder Dusk Elder Frost Gull Hazel Ivy Juniper Kestrel Larch Moss Nettle Oak Pine"),
    _words("bridge dale ford ham hollow mere stead wick"),
)
_GUILD = (
    _words("Blue Copper Gilded Hidden Ivory Jade Lonely Merry Patient Quiet Red Silver Swift Wandering"),
    _words("Anchor Badger Compass Falcon Hare Lantern Otter Raven Spade Stork Thistle Wheel"),
)


@dataclass(frozen=True)
class World:
    """A generated corpus and its questions, in a fixed order."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class _Entry:
    """One thing of the world: its name, its facts by relation, its passage."""

    name: str
    facts: dict[str, str]
    text: str

    @property
    def passage(self) -> str:
        return f'"{self.name}"\n{self.text}'


def world_names(part: int = 0, parts: int = 1) -> dict[str, tuple[str, ...]]:
    """All ``"people"``, ``"towns"`` and ``"guilds"`` a world can hold, or part number `part` of `parts` equal ones.

    Raises:
        ValueError: `part` does not lie in [0, parts).
    """
    if not 0 <= part < parts:
        raise ValueError(f"world_names: part must lie in [0, {parts}), got {part}; 0 of 1 is every name")
    people, towns = (["".join(pieces) for pieces in product(*table)] for table in (_PERSON, _TOWN))
    guilds = [f"{first} {second} Guild" for first, second in product(*_GUILD)]
    every = {"people": people, "towns": towns, "guilds": guilds}
    return {kind: tuple(dict.fromkeys(names))[part::parts] for kind, names in every.items()}


def generate_world(seed: int = 0, *, people: int = 48, comparisons: int = 60, part: int = 0, parts: int = 1) -> World:
    """A country with so many people, half as many guilds and a quarter as many towns, and questions about it.

    Args:
        seed: the same seed gives the same world, on every machine.
        people: at least 8.
        comparisons: questions that compare two people or two guilds.
        part, parts: names are taken from this part of all (`world_names`): two worlds of different parts share no
            person, town or guild, so that a question of one says nothing about the other.

    Raises:
        ValueError: a number is too small, or larger than the supply of names and pairs.
    """
    names = world_names(part, parts)
    most = min(len(names["people"]), 2 * len(names["guilds"]), 4 * len(names["towns"]))
    if not 8 <= people <= most:
        raise ValueError(f"generate_world: people must lie in [8, {most}], got {people}; 48 is the usual value")
    if not 0 <= comparisons <= people * 4:
        raise ValueError(
            f"generate_world: comparisons must lie in [0, 4 * people = {4 * people}], got {comparisons}; "
            "60 is the usual value"
        )
    rng = random.Random(f"search-qa world {seed}")
    towns = _towns(rng, rng.sample(names["towns"], people // 4))
    persons = _people(rng, rng.sample(names["people"], people), towns)
    guilds = _guilds(rng, rng.sample(names["guilds"], people // 2), persons, towns)
    entries = [*towns.values(), *persons.values(), *guilds.values()]
    questions = [
        *_lookups(persons, guilds, towns),
        *_bridges(persons, guilds, towns),
        *_comparisons(rng, comparisons, persons, guilds),
    ]
    numbered: list[Question] = []
    for kind in KINDS:
        group = [item for item in questions if item[0] == kind]
        rng.shuffle(group)
        numbered += [
            Question(f"{SOURCE}-{kind}/{number:04d}", text, (answer,), f"{SOURCE}-{kind}", kind, facts)
            for number, (_, text, answer, facts) in enumerate(group)
        ]
    documents = tuple(Document(str(number), entry.passage) for number, entry in enumerate(entries))
    return World(documents, tuple(numbered))


def split_questions(questions: Sequence[Question], eval_share: float = 0.25) -> dict[str, tuple[Question, ...]]:
    """``{"train": .., "eval": ..}``: the first share of each kind is kept for evaluation.

    Raises:
        ValueError: the share does not lie in (0, 1).
    """
    if not 0 < eval_share < 1:
        raise ValueError(f"split_questions: eval_share must lie in (0, 1), got {eval_share}; 0.25 is the usual value")
    train: list[Question] = []
    held_out: list[Question] = []
    for source in dict.fromkeys(question.data_source for question in questions):
        group = [question for question in questions if question.data_source == source]
        count = max(1, round(eval_share * len(group)))
        held_out += group[:count]
        train += group[count:]
    return {"train": tuple(train), "eval": tuple(held_out)}


_Asked = tuple[str, str, str, tuple[str, ...]]
_Entries = dict[str, _Entry]


def _towns(rng: random.Random, names: Sequence[str]) -> _Entries:
    towns = {}
    for name in names:
        facts = {"region": rng.choice(REGIONS), "river": rng.choice(RIVERS)}
        text = f"{name} is a town in the region of {facts['region']}. {name} stands on the river {facts['river']}."
        towns[name] = _Entry(name, facts, text)
    return towns


def _people(rng: random.Random, names: Sequence[str], towns: _Entries) -> _Entries:
    years = rng.sample(range(1700, 1700 + 2 * len(names)), len(names))
    people = {}
    for name, year in zip(names, years, strict=True):
        facts = {"town": rng.choice(list(towns)), "trade": rng.choice(TRADES), "year": str(year)}
        text = f"{name} was a {facts['trade']}, born in {facts['town']} in {year}."
        people[name] = _Entry(name, facts, text.replace(" a astronomer", " an astronomer"))
    return people


def _guilds(rng: random.Random, names: Sequence[str], people: _Entries, towns: _Entries) -> _Entries:
    years = rng.sample(range(1800, 1800 + 2 * len(names)), len(names))
    guilds = {}
    for name, year in zip(names, years, strict=True):
        facts = {"founder": rng.choice(list(people)), "seat": rng.choice(list(towns)), "year": str(year)}
        text = f"The {name} was founded by {facts['founder']} in {year}. Its hall is in {facts['seat']}."
        guilds[name] = _Entry(name, facts, text)
    return guilds


def _lookups(people: _Entries, guilds: _Entries, towns: _Entries) -> list[_Asked]:
    asked = []
    for entries, relation, words in (
        (people, "town", "In which town was {} born?"),
        (people, "trade", "What was the trade of {}?"),
        (guilds, "founder", "Who founded the {}?"),
        (guilds, "seat", "In which town is the hall of the {}?"),
        (towns, "region", "In which region is {}?"),
        (towns, "river", "On which river does {} stand?"),
    ):
        asked += [
            ("lookup", words.format(name), entry.facts[relation], (entry.passage,)) for name, entry in entries.items()
        ]
    return asked


def _bridges(people: _Entries, guilds: _Entries, towns: _Entries) -> list[_Asked]:
    asked: list[_Asked] = []
    for name, person in people.items():
        town = towns[person.facts["town"]]
        facts = (person.passage, town.passage)
        asked.append(("bridge", f"In which region was {name} born?", town.facts["region"], facts))
        asked.append(("bridge", f"On which river was {name} born?", town.facts["river"], facts))
    for name, guild in guilds.items():
        founder, seat = people[guild.facts["founder"]], towns[guild.facts["seat"]]
        home = towns[founder.facts["town"]]
        two, three = (guild.passage, founder.passage), (guild.passage, founder.passage, home.passage)
        asked += [
            ("bridge", f"In which town was the founder of the {name} born?", home.name, two),
            ("bridge", f"What was the trade of the founder of the {name}?", founder.facts["trade"], two),
            ("bridge", f"In which region was the founder of the {name} born?", home.facts["region"], three),
            (
                "bridge",
                f"In which region is the hall of the {name}?",
                seat.facts["region"],
                (guild.passage, seat.passage),
            ),
        ]
    return asked


def _comparisons(rng: random.Random, count: int, people: _Entries, guilds: _Entries) -> list[_Asked]:
    asked: dict[frozenset[str], _Asked] = {}
    while len(asked) < count:
        entries, words = (
            (people, "Who was born earlier, {} or {}?")
            if rng.random() < 0.5
            else (guilds, "Which was founded earlier, the {} or the {}?")
        )
        one, other = rng.sample(list(entries.values()), 2)
        earlier = min(one, other, key=lambda entry: int(entry.facts["year"]))
        text = words.format(one.name, other.name)
        asked[frozenset((one.name, other.name))] = ("comparison", text, earlier.name, (one.passage, other.passage))
    return list(asked.values())
