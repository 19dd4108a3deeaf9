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


@pytest.fixture(autouse=True)
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MIN_SECONDS", 0.0)


def test_energy_sums_all_packages_and_handles_counter_wraparound(tmp_path: Path) -> None:
    first, second = tree(tmp_path), tree(tmp_path, socket=1, name="package-1")
    tree(tmp_path, socket=2, name="dram")

    def step() -> None:
        first.write_text("7000000")
        second.write_text("1000000")  # 5,000,000 to the end of the range and 1,000,000 more

    assert energy.images_per_joule(step, 4, root=tmp_path)["images_per_joule"] == pytest.approx(4 / (2.0 + 6.0))


def test_stopped_or_missing_counters_are_skipped_with_reason(tmp_path: Path) -> None:
    tree(tmp_path)
    assert energy.images_per_joule(lambda: None, 4, root=tmp_path)["status"] == "skipped"
    tree(tmp_path / "other", name="core")
    none = energy.images_per_joule(lambda: None, 4, root=tmp_path / "other")
    assert none == {"status": "skipped", "reason": energy.NO_COUNTERS}
