"""Samples, where they come from, and how they are split among clients."""

from coterie.data.dataset import Dataset
from coterie.data.hugging_face import from_hugging_face
from coterie.data.loading import load
from coterie.data.own import from_folder, from_npz, from_torch
from coterie.data.schema import Column, Schema
from coterie.data.sources import Source, sources
from coterie.data.split import Split, SplitRule
from coterie.data.splits import split_rules
from coterie.data.storage import data_folder
from coterie.data.tables import from_frame, from_table
