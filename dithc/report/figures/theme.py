"""Colors and type of the figures. Color-blind readers can distinguish the palette of Okabe and Ito."""

FACE, INK, MUTED, GRID = "#ffffff", "#1d2733", "#697586", "#e4e8ee"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
ROLES = {"untrained": "#9aa4b2", "start": "#e69f00", "step": "#56b4e9", "final": "#0072b2", "codec": "#009e73"}
# Settings of matplotlib: quiet axes, no frame.
SETTINGS = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.facecolor": FACE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.facecolor": FACE,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
}
