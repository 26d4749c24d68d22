"""Packaging of turncredit: four top-level folders, installed under the PEP 420 namespace ``turncredit``."""

from pathlib import Path

from setuptools import find_packages, setup

ROOTS = ("credit", "rollout", "trainers", "envs")
EXTRAS = {
    "alfworld": ["alfworld==0.4.2", "textworld==1.7.0"],
    "webshop": ["bm25s>=0.2", "PyStemmer>=2.2"],
    "search": ["bm25s>=0.2", "PyStemmer>=2.2", "pyarrow>=14"],
    "viz": ["matplotlib>=3.7"],
    "lora": ["peft>=0.17"],
    "pandas": ["pandas>=2.0"],
    "trl": ["trl==1.16.0; python_version >= '3.11'"],  # trainers/adapters/trl.py takes no other
}
EXTRAS["dev"] = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "nbclient", "ipykernel"]
EXTRAS["dev"] += ["ruff>=0.6", "pyright>=1.1.390", "build"]
PLAIN = ("alfworld", "webshop", "search", "viz", "lora", "pandas")
EXTRAS["all"] = sorted({requirement for extra in PLAIN for requirement in EXTRAS[extra]})

packages = [
    f"turncredit.{name}" for root in ROOTS for name in [root, *(f"{root}.{sub}" for sub in find_packages(root))]
]

setup(
    name="turncredit",
    version="0.1.0",
    description="Turn-level credit assignment for multi-turn language-model agents, in plain PyTorch",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=packages,
    package_dir={f"turncredit.{root}": root for root in ROOTS},
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
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
