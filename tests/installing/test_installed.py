"""An editable install and a wheel, each in an environment of its own: what is in them, what runs, what editors see."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.installed import call, copy_of_checkout, environment, pip
from helpers.public_names import PACKAGES, ROOT, public_names, ten_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="links and environments are laid as on Linux"),
]
SCRIPT = Path("tests/helpers/run_installed.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Folder with the sdist of the checkout, and the wheel made from that."""
    source = copy_of_checkout(tmp_path_factory.mktemp("wheel") / "source")
    call(sys.executable, "-m", "build", "-q", "--no-isolation", cwd=source)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(built, tmp_path_factory) -> Path:
    """Python with the wheel installed."""
    python = environment(tmp_path_factory.mktemp("wheel") / "venv")
    pip(python, "install", next(built.glob("*.whl")), cwd=built)
    return python


@pytest.fixture(scope="module")
def editable(tmp_path_factory) -> Path:
    """Python with a checkout installed twice, its path has spaces and a module came after the install."""
    folder = tmp_path_factory.mktemp("editable")
    source, python = copy_of_checkout(folder / "a check out"), environment(folder / "venv")
    (source / "credit" / "marker.py").unlink()
    for _ in range(2):
        pip(python, "install", "-e", source, cwd=folder)
    (source / "credit" / "marker.py").write_text('MARK: str = "here"\n')
    return python


def test_a_wheel_holds_the_library_and_nothing_else(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"turncredit"}
    inside = {Path(name).relative_to("turncredit") for name in names if name.startswith("turncredit/")}
    shipped = {path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert {path for path in inside if path.suffix == ".py"} == shipped | {
        Path("__init__.py"),
        Path("credit/marker.py"),
    }
    data = {path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.json")}
    typed = {Path("py.typed"), *(Path(name, "py.typed") for name in PACKAGES)}
    assert {path for path in inside if path.suffix != ".py"} == data | typed
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        assert not [name for name in archive.getnames() if "/tests/" in name]


def test_a_wheel_has_every_name_and_runs_the_ten_lines(wheel, tmp_path):
    found = json.loads(call(wheel, ROOT / SCRIPT, cwd=tmp_path))
    assert found["lacking"] == []
    assert found["names"] == sum(map(len, public_names().values()))
    assert found["versions"][0] == found["versions"][1]
    assert [folder for folder in found["folders"] if not folder.endswith("site-packages/turncredit")] == []
    assert "tensor" in found["readme"]


def test_an_editable_install_shows_what_came_after_it(editable, tmp_path):
    code = "import turncredit; from turncredit.credit import marker; print(marker.MARK, *turncredit.__path__)"
    said = call(editable, "-c", code, cwd=tmp_path).strip()
    assert said.startswith("here ")
    assert said.endswith("/a check out/.typing/turncredit")


def asks(folder: Path) -> int:
    """A file as a user's, which asks a type checker for every public name; returns how many."""
    lines, count = [ten_lines(), "from turncredit.credit.marker import MARK", "reveal_type(MARK)"], 1
    for package, names in public_names().items():
        for name in names:
            lines += [f"from {package} import {name} as name{count}", f"reveal_type(name{count})"]
            count += 1
    (folder / "mine.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.10"}')
    return count


@pytest.mark.parametrize("kind", ["editable", "wheel"])
def test_a_strict_type_checker_knows_every_name(kind, request, tmp_path):
    pytest.importorskip("pyright")
    python, count = request.getfixturevalue(kind), asks(tmp_path)
    # pyright's exit status is 1 where it found an error: what it said is looked at instead
    run = f"{sys.executable} -m pyright --outputjson --pythonpath {python} mine.py || true"
    said = json.loads(call("bash", "-c", run, cwd=tmp_path))["generalDiagnostics"]
    assert [part["message"] for part in said if part["severity"] != "information"] == []
    types = [re.search(r'is "(.*)"$', part["message"], re.S)[1] for part in said]
    assert len(types) == count
    assert [name for name in types if name in {"Any", "Unknown"} or "Unknown" in name] == []


def test_no_exported_symbol_has_an_unknown_type(wheel, tmp_path):
    """Methods and attributes of public classes too; TextWorld, whose engine one module extends, has no types."""
    pytest.importorskip("pyright")
    run = f"{sys.executable} -m pyright --verifytypes turncredit --ignoreexternal --outputjson || true"
    found = json.loads(call("bash", "-c", run, cwd=tmp_path, python=wheel))["typeCompleteness"]
    unknown = re.compile(r"type.*unknown|annotation is missing", re.I)
    bad = {
        symbol["name"]
        for symbol in found["symbols"]
        if symbol["isExported"]
        and any(
            unknown.search(said["message"]) and "partially" not in said["message"] for said in symbol["diagnostics"]
        )
    }
    assert {name for name in bad if not name.startswith("turncredit.envs.alfworld.engine.")} == set()
    assert found["exportedSymbolCounts"]["withUnknownType"] <= 5
    assert found["exportedSymbolCounts"]["withKnownType"] > 3000


def test_an_uninstalled_checkout_leaves_nothing_behind(tmp_path):
    source, python = copy_of_checkout(tmp_path / "source"), environment(tmp_path / "venv")
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    before = {path.name for path in site.iterdir()}
    pip(python, "install", "-e", source, cwd=tmp_path)
    assert {path.name for path in site.iterdir()} > before
    pip(python, "uninstall", "-y", "turncredit", cwd=tmp_path)
    assert {path.name for path in site.iterdir()} - {"__pycache__"} == before - {"__pycache__"}
    assert (source / ".typing" / "turncredit" / "credit").resolve() == source / "credit"


VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """Of that version: the one of this process, one on the path, or one of pyenv's."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [*map(str, pyenv.glob(f"versions/{version}.*/bin")), os.environ.get("PATH", "")]
    return shutil.which(f"python{version}", path=os.pathsep.join(places))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_compiles_and_its_light_half_imports_on_every_python(version, built, tmp_path):
    """``turncredit.envs`` needs the standard library alone."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no python{version} here")
    zipfile.ZipFile(next(built.glob("*.whl"))).extractall(tmp_path)
    call(python, "-m", "compileall", "-q", "turncredit", cwd=tmp_path)
    light = (
        "import turncredit.envs.kit, turncredit.envs.search_qa as qa; print(turncredit.__version__, len(qa.__all__))"
    )
    assert call(python, "-s", "-c", light, cwd=tmp_path).split()[0] in str(next(built.glob("*.whl")))
