"""Energy of packages, from emulated counters that wrap, stop, or are unreadable."""

from pathlib import Path

import pytest

from dithc.bench import energy


def tree(root: Path, *, value: int = 5_000_000, name: str = "package-0", socket: int = 0) -> Path:
    folder = root / f"intel-rapl:{socket}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    (folder / "max_energy_range_uj").write_text("9999999\n")
    return folder / "energy_uj"


def test_joules_are_those_of_all_packages_also_where_a_counter_begins_anew(tmp_path: Path) -> None:
    first, second = tree(tmp_path), tree(tmp_path, socket=1, name="package-1")
    tree(tmp_path, socket=2, name="dram")
    packages = energy.RaplPackages(tmp_path)
    before = packages.read()
    first.write_text("7000000")
    second.write_text("1000000")  # 5,000,000 to the end of the range and 1,000,000 more
    assert packages.joules(before, packages.read()) == pytest.approx(2.0 + 6.0)


def test_images_per_joule_of_counters_that_advance_stand_still_or_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "LEAST_SECONDS", 0.0)
    counter = tree(tmp_path)
    packages = energy.RaplPackages(tmp_path)
    told = energy.images_per_joule(lambda: counter.write_text("5500000"), 4, packages=packages)
    assert told["images_per_joule"] == pytest.approx(8.0)
    assert energy.images_per_joule(lambda: None, 4, packages=packages)["status"] == "skipped"
    tree(tmp_path / "other", name="core")
    none = energy.RaplPackages(tmp_path / "other")
    assert energy.images_per_joule(lambda: None, 4, packages=none) == {"status": "skipped", "reason": energy.NOTHING}
