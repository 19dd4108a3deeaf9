"""Write docs/config.md and the JSON schema for editors; `python -m dithc.config.generate --schema` writes only the
schema."""

import json
import sys
from pathlib import Path

from dithc.config.experiment import Experiment
from dithc.config.reference import page

PAGE = Path("docs/config.md")
SCHEMA = Path("workflow/schemas/config.schema.json")


def schema_json() -> str:
    """Return the JSON schema of a configuration."""
    schema = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.parent.mkdir(parents=True, exist_ok=True)
    SCHEMA.write_text(schema_json())
    if "--schema" not in sys.argv:
        PAGE.write_text(page())
