"""Results per dataset, over datasets, and over those trained on and those held out."""

from __future__ import annotations

from collections.abc import Sequence

from .data import HELD_OUT_SOURCES, TRAIN_SOURCES


def dataset_metrics(data_sources: Sequence[str], values: Sequence[float], name: str = "em") -> dict[str, float]:
    """Means of `values` per dataset, and means of those means.

    ``{name}/{dataset}`` is the mean over that dataset's questions; ``{name}/average`` the mean over datasets, each
    counting once; ``{name}/in_domain`` and ``{name}/out_of_domain`` the same over those of Search-R1's datasets that
    are trained on and held out, where any is there.

    Args:
        data_sources: dataset of each question.
        values: exact match or sub-EM of each, in [0, 1].
        name: prefix of the keys.

    Raises:
        ValueError: the lengths differ, or there are none.

    >>> dataset_metrics(["nq", "nq", "musique"], [1.0, 0.0, 1.0])["em/average"]
    0.75
    """
    if len(data_sources) != len(values) or not values:
        raise ValueError(
            f"dataset_metrics: values must be one per question, at least one, got {len(values)} for "
            f"{len(data_sources)} data sources; pass both from the same episodes"
        )
    grouped: dict[str, list[float]] = {}
    for source, value in zip(data_sources, values, strict=True):
        grouped.setdefault(source, []).append(float(value))
    means = {source: sum(group) / len(group) for source, group in sorted(grouped.items())}
    result = {f"{name}/{source}": mean for source, mean in means.items()}
    for label, members in (
        ("average", tuple(means)),
        ("in_domain", TRAIN_SOURCES),
        ("out_of_domain", HELD_OUT_SOURCES),
    ):
        present = [means[source] for source in members if source in means]
        if present:
            result[f"{name}/{label}"] = sum(present) / len(present)
    return result
