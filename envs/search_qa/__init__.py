"""Question answering with a search engine, as Search-R1 defines it: environment, retrievers, server, embedded world.

Importing this package needs nothing but the standard library; a retriever's own library is imported when one is made,
and its absence is then reported with the command that installs it. The server is
`turncredit.envs.search_qa.server`.
"""

from .answers import exact_match, extract_answer, normalize_answer, sub_exact_match
from .bm25 import Bm25Retriever
from .data import (
    DATA_SOURCES,
    HELD_OUT_SOURCES,
    TRAIN_SOURCES,
    Question,
    load_corpus,
    load_questions,
    question_kind,
)
from .dense import DenseRetriever, VectorIndex
from .env import SearchQAEnv
from .generator import World, generate_world, split_questions
from .http_retriever import HttpRetriever
from .metrics import dataset_metrics
from .prompts import parse_response, search_messages
from .retrieval import Document, NoListsError, RetrievalError, Retriever, information_block, read_information
from .skills import Skill, skill_bank, skills_for, skills_text
from .suite import SearchQASuite

__all__ = [
    "DATA_SOURCES",
    "HELD_OUT_SOURCES",
    "TRAIN_SOURCES",
    "Bm25Retriever",
    "DenseRetriever",
    "Document",
    "HttpRetriever",
    "NoListsError",
    "Question",
    "RetrievalError",
    "Retriever",
    "SearchQAEnv",
    "SearchQASuite",
    "Skill",
    "VectorIndex",
    "World",
    "dataset_metrics",
    "exact_match",
    "extract_answer",
    "generate_world",
    "information_block",
    "load_corpus",
    "load_questions",
    "normalize_answer",
    "parse_response",
    "question_kind",
    "read_information",
    "search_messages",
    "skill_bank",
    "skills_for",
    "skills_text",
    "split_questions",
    "sub_exact_match",
]
