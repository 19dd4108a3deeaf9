"""Caches across steps: exact where they reuse nothing, nearer with every call that is computed, alike on any ranks and rows."""

import json
import math

import pytest
import torch
from pydantic import ValidationError

from dithc import native
from dithc.config import load_mapping
from dithc.log import UserError
