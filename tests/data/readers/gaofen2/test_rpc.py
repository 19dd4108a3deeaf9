"""Rational polynomial coefficients: reading of producers' files, and the resulting ground geometry."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.data.readers.gaofen2.rpc import Rpc, check_covers, find_rpc, read_rpc
from tests.inputs.gaofen2_raw import rpb_text

RNG = np.random.default_rng(3)


def rpc() -> Rpc:
    """Create a camera over 116.5 degrees east, 40.2 degrees north, with all 80 coefficients."""
    small = RNG.uniform(-1e-4, 1e-4, (4, 20))
    small[0, 2], small[2, 1], small[0, 1], small[2, 2] = -1.1, 1.05, -0.2, -0.19
    small[0, 3], small[2, 3] = 0.002, 0.03
    small[1, 0], small[3, 0] = 1.0, 1.0
    numbers = [tuple(row.tolist()) for row in small]
    return Rpc(
        line_off=3645.0,
        samp_off=3654.5,
        lat_off=40.2,
        long_off=116.5,
        height_off=64.243,
        line_scale=4224.0,
        samp_scale=4220.0,
        lat_scale=0.14625,
        long_scale=0.1444,
        height_scale=2359.75,
        line_num_coeff=numbers[0],
        line_den_coeff=numbers[1],
        samp_num_coeff=numbers[2],
        samp_den_coeff=numbers[3],
    )


def test_rpc_txt_file_equals_the_written_camera(tmp_path: Path) -> None:
    camera, lines = rpc(), []
    for name, value in vars(camera).items():
        if isinstance(value, tuple):
            lines += [f"{name.upper()}_{i}: {number:+.16E}" for i, number in enumerate(value, start=1)]
        else:
            unit = {"line": "pixels", "samp": "pixels", "heig": "meters"}.get(name[:4], "degrees")
            lines.append(f"{name.upper()}: {value:+.10f} {unit}")
    (tmp_path / "image_rpc.txt").write_text("\n".join(lines))
    assert read_rpc(tmp_path / "image_rpc.txt") == camera


def test_projection_matches_gdal_for_the_same_rpb_file(tmp_path: Path) -> None:
    """GDAL finds the file by its name. It runs in a separate process, because the settings here prevent that."""
    camera = rpc()
    (tmp_path / "image.rpb").write_text(rpb_text(camera))
    script = """
import sys, warnings
import numpy as np, rasterio
from rasterio.transform import RPCTransformer
warnings.simplefilter("ignore")
path, *numbers = sys.argv[1:]
with rasterio.open(path, "w", driver="GTiff", count=1, width=8, height=8, dtype="uint8") as target:
    target.write(np.zeros((1, 8, 8), "uint8"))
with rasterio.open(path) as source:
    line, sample = RPCTransformer(source.rpcs).rowcol(*[[float(n)] for n in numbers], op=float)
print(*line, *sample)
"""
    longitude, latitude, height = 116.55, 40.13, 210.0
    numbers = [str(number) for number in (longitude, latitude, height)]
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "image.tif"), *numbers],
        capture_output=True,
        text=True,
        check=True,
    )
    line, sample = camera.project(*(np.array([number]) for number in (longitude, latitude, height)))
    # GDAL counts from the corner of the first pixel, the coefficients from its center.
    np.testing.assert_allclose([float(n) for n in process.stdout.split()], [line[0] + 0.5, sample[0] + 0.5], atol=1e-6)


def test_projection_inverts_location() -> None:
    camera = rpc()
    lines, samples = RNG.uniform(0, 7000, (2, 500))
    heights = RNG.uniform(-100, 2000, 500)
    found = camera.project(*camera.locate(lines, samples, heights), heights)
    np.testing.assert_allclose(found, [lines, samples], atol=1e-3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lineScale = 4224", "lineScale = -4224"),
        ("latOffset = 40.2", "latOffset = 89.2"),
        ("heightScale", "heightSkale"),
        ("lineNumCoef = (", "lineNumCoef = (1.0,"),
        ("+1.0000000000000000E+00", "+1.0E+999"),
        ("longOffset", "latOffset"),
        (".", ","),
    ],
)
def test_invalid_coefficients_are_rejected_with_a_fix(tmp_path: Path, before: str, after: str) -> None:
    text = rpb_text(rpc())
    assert before in text
    (tmp_path / "image.rpb").write_text(text.replace(before, after, 1 if len(before) > 1 else -1))
    with pytest.raises(UserError, match="cannot be used") as caught:
        read_rpc(tmp_path / "image.rpb")
    assert "fix" in str(caught.value)


@pytest.mark.parametrize("damage", ["long", "empty", "UTF-16", "zeros", "cut", "pipe"])
def test_files_without_readable_coefficients_are_rejected(tmp_path: Path, damage: str) -> None:
    path, text = tmp_path / "image.rpb", rpb_text(rpc())
    contents = {"long": text.encode() + b" " * 70_000, "empty": b"", "UTF-16": text.encode("utf-16")}
    contents |= {"zeros": bytes(len(text)), "cut": text[: len(text) // 2].encode()}
    if damage == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(contents[damage])
    with pytest.raises(UserError):
        read_rpc(path)


def test_location_with_degenerate_coefficients_raises_an_error() -> None:
    flat = Rpc(**{**vars(rpc()), "line_num_coeff": (0.1, *[0.0] * 19)})
    with pytest.raises(UserError, match="do not lead to a place"):
        flat.locate(np.array([10.0]), np.array([10.0]), np.array([0.0]))


def test_coefficients_are_rejected_for_an_image_of_another_size(tmp_path: Path) -> None:
    check_covers(rpc(), tmp_path, height=6908, width=7300)
    with pytest.raises(UserError, match="another image"):
        check_covers(rpc(), tmp_path, height=1727, width=1825)


def test_rpc_is_found_by_either_name_and_contradictory_files_are_rejected(tmp_path: Path) -> None:
    image, camera = tmp_path / "image.tiff", rpc()
    assert find_rpc(image) is None
    (tmp_path / "image_rpc.txt").write_text(rpb_text(camera))
    assert find_rpc(image) == tmp_path / "image_rpc.txt"
    (tmp_path / "image.rpb").write_text(rpb_text(camera).replace("\n", "\r\n"))
    assert find_rpc(image) == tmp_path / "image.rpb"
    (tmp_path / "image.rpb").write_text(rpb_text(Rpc(**{**vars(camera), "line_off": camera.line_off + 1})))
    with pytest.raises(UserError, match=r"image\.rpb, image_rpc\.txt"):
        find_rpc(image)


def test_repeated_coefficient_with_another_value_is_rejected(tmp_path: Path) -> None:
    path, camera = tmp_path / "x.rpb", rpc()
    text = rpb_text(camera)
    for name in ("lineOffset", "latScale"):
        entry = next(line for line in text.splitlines() if line.strip().startswith(name))
        path.write_text(text.replace(entry, f"{entry}\n{entry}"))
        assert read_rpc(path) == camera
        for other in (f"{entry}\n\t{name} = 7.5;", f"\t{name} = 7.5;\n{entry}", f"{entry}\n\t{name} = 7.5;\n{entry}"):
            path.write_text(text.replace(entry, other))
            with pytest.raises(UserError, match="0 numbers for"):
                read_rpc(path)


@pytest.mark.parametrize(
    ("longitude", "latitude", "epsg"), [(116.5, 40.2, 32650), (-72.3, -36.7, 32718), (180.0, 1.0, 32601)]
)
def test_utm_zone_is_derived_from_the_center_coordinates(longitude: float, latitude: float, epsg: int) -> None:
    assert Rpc(**{**vars(rpc()), "long_off": longitude, "lat_off": latitude}).epsg == epsg
