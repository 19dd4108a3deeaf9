"""Colours and type of the figures, for light and for dark screens."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a figure; the palettes are those of Okabe and Ito, which colour-blind readers can tell apart."""

    face: str
    ink: str
    muted: str
    grid: str
    palette: tuple[str, ...]
    roles: dict[str, str]

    @property
    def settings(self) -> dict[str, object]:
        """The drawing library's settings for this theme: quiet axes, no frame."""
        return {
            "font.size": 9.5,
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 9,
            "axes.edgecolor": self.grid,
            "axes.labelcolor": self.muted,
            "axes.titlecolor": self.ink,
            "axes.facecolor": self.face,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": self.grid,
            "grid.linewidth": 0.8,
            "figure.facecolor": self.face,
            "text.color": self.ink,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
            "xtick.major.size": 0,
            "ytick.major.size": 0,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "legend.frameon": False,
        }


LIGHT = Theme(
    face="#ffffff",
    ink="#1d2733",
    muted="#697586",
    grid="#e4e8ee",
    palette=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    roles={"untrained": "#9aa4b2", "start": "#e69f00", "step": "#56b4e9", "final": "#0072b2", "codec": "#009e73"},
)
DARK = Theme(
    face="#161c24",
    ink="#e3e8ef",
    muted="#9aa5b4",
    grid="#2a333f",
    palette=("#56b4e9", "#e8823a", "#2fc79b", "#d99cbf", "#f0b73c", "#8fa8c8"),
    roles={"untrained": "#6d7887", "start": "#f0b73c", "step": "#8fa8c8", "final": "#56b4e9", "codec": "#2fc79b"},
)
