"""Prints the tables of docs/models.md: PYTHONPATH=tests python tests/helpers/family_table.py (some minutes)."""

from __future__ import annotations

import datetime
import warnings

import transformers

from helpers.families import KINDS
from helpers.family_checks import SAMPLED, SCORED, Verdict, survey

WHY = {
    "not look ahead": "tokens behind others change their hidden states",
    "sample in generate": "`generate` follows another distribution than the forward",
    "transformers' own generate": "has a `generate` of its own",
    "hidden states alone": "its head reads more than hidden states",
    "If training": "train mode takes rows of one length only, says its own forward",
}


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    results = survey()
    right = {family: found for family, found in results.items() if isinstance(found, Verdict) and found.kind == "right"}
    refused = {family: found for family, found in results.items() if isinstance(found, Verdict) and family not in right}
    unbuilt = {family: found for family, found in results.items() if isinstance(found, str)}
    wrong = [family for family, found in refused.items() if found.kind == "wrong"]
    padded = [family for family, found in right.items() if not found.equal_lengths]
    equal = [family for family, found in right.items() if found.equal_lengths]
    largest = [max(found.apart[index] for found in right.values()) for index in range(4)]
    print(f"{datetime.date.today()}, transformers {transformers.__version__}, {len(results)} families.\n")
    print("| verdict | families |\n| --- | ---: |")
    print(f"| right | {len(right)} |\n| of these, prompts batched by equal lengths | {len(equal)} |")
    print(f"| refused by name | {len(refused) - len(wrong)} |\n| wrong without a word | {len(wrong)} |")
    print(f"| no tiny model can be built and run on text | {len(unbuilt)} |\n")
    print(
        "Largest difference among the right ones, in nats: "
        + ", ".join(
            f"{name} {value:.1e} (tolerance {tolerance:g})"
            for name, value, tolerance in zip(
                ("alone", "padded", "train mode", "sampled"), largest, (SCORED, SCORED, SCORED, SAMPLED), strict=True
            )
        )
        + ".\n"
    )
    drifting = [family for family, found in right.items() if found.apart[3] > SCORED]
    print(f"Sampled more than {SCORED:g} from scored: " + ", ".join(drifting) + ".\n")
    print("**Right:** " + ", ".join(padded) + ".\n")
    print("**Right, with prompts batched by equal lengths:** " + ", ".join(equal) + ".\n")
    print("| refused | class | because |\n| --- | --- | --- |")
    for family, found in refused.items():
        reason = next((why for key, why in WHY.items() if key in found.note), found.note[:120] or str(found.apart))
        print(f"| {family} | {KINDS[family]} | {reason} |")
    print("\n| not built | reason |\n| --- | --- |")
    for family, reason in unbuilt.items():
        print(f"| {family} | {' '.join(reason.split())[:110].replace('|', '/')} |")


if __name__ == "__main__":
    main()
