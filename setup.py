"""Packaging of turncredit: the four top-level folders, seen as one package through the links in ``.typing``."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
LINKS = ".typing"  # what an editable install puts on the path of imports, and type checkers on theirs
VERSION = re.search(r'^__version__ = "(.+)"', (HERE / LINKS / "turncredit" / "__init__.py").read_text(), re.M)
if not (HERE / LINKS / "turncredit" / "credit" / "__init__.py").is_file():
    raise SystemExit(f"setup: {LINKS} must hold links to the four folders, got none; clone with core.symlinks=true")
EXTRAS = {
    "alfworld": ["alfworld==0.4.2", "textworld==1.7.0"],
    "webshop": ["bm25s>=0.2", "PyStemmer>=2.2"],
    "search": ["bm25s>=0.2", "PyStemmer>=2.2", "pyarrow>=14"],
    "viz": ["matplotlib>=3.7"],
    "lora": ["peft>=0.17"],
    "pandas": ["pandas>=2.0"],
    "trackio": ["trackio>=0.43"],
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7", "mkdocstrings[python]>=1.0", "griffelib>=2.0"],
    "trl": ["trl==1.16.0; python_version >= '3.11'"],  # trainers/adapters/trl.py takes no other
}
EXTRAS["dev"] = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "nbclient", "ipykernel"]
EXTRAS["dev"] += ["ruff>=0.6", "pyright>=1.1.390", "build", "setuptools>=77", *EXTRAS["docs"]]
PLAIN = ("alfworld", "webshop", "search", "viz", "lora", "pandas")
EXTRAS["all"] = sorted({requirement for extra in PLAIN for requirement in EXTRAS[extra]})

setup(
    name="turncredit",
    version=VERSION[1],
    description="Turn-level credit assignment for multi-turn language-model agents, in plain PyTorch",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(LINKS),
    package_dir={"": LINKS},
    package_data={"": ["py.typed", "*.json", "*.txt"]},
    install_requires=[
        "torch>=2.6",
        "transformers>=5.0",
        "accelerate>=1.10",
        "filelock>=3.12",
        "deepspeed>=0.17",
        "numpy>=1.26",
        "datasets>=3.0",
        "sentence-transformers>=5.0",
        "wandb>=0.19",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["turncredit = turncredit.trainers.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Typing :: Typed",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
