"""Loading questions and passages: Search-R1's schema in every form, and every fault a file can have."""

from __future__ import annotations

import gzip
import json

import pytest

from turncredit.envs.search_qa import Document, load_corpus, load_questions, question_kind

ROWS = [
    {"id": "train_0", "question": "who wrote it", "golden_answers": ["Ada", "A. L."], "data_source": "nq"},
    {"id": "test_7", "question": "Which is older, X or Y?", "golden_answers": ["X"], "data_source": "hotpotqa"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_json_lines(tmp_path):
    first, second = load_questions(write(tmp_path / "q.jsonl", ROWS))
    assert (first.id, first.answers, first.data_source, first.kind) == ("nq/train_0", ("Ada", "A. L."), "nq", "lookup")
    assert (second.id, second.kind) == ("hotpotqa/test_7", "comparison")


def test_gzipped_lines_and_a_json_array(tmp_path):
    with gzip.open(tmp_path / "q.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "q.json").write_text(json.dumps(ROWS), encoding="utf-8")
    expected = load_questions(write(tmp_path / "q.jsonl", ROWS))
    assert load_questions(tmp_path / "q.jsonl.gz") == expected
    assert load_questions(tmp_path / "q.json") == expected


def test_parquet_in_search_r1s_schema(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="the 'search' extra (pyarrow) is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "id": row["id"],
            "question": row["question"],
            "golden_answers": row["golden_answers"],
            "data_source": row["data_source"],
            "prompt": [{"role": "user", "content": "Answer .."}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": row["golden_answers"]}},
            "extra_info": {"index": 0, "split": "train"},
        }
        for row in ROWS
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    expected = load_questions(write(tmp_path / "q.jsonl", ROWS))
    assert load_questions(tmp_path / "q.parquet") == expected
    without = [{key: value for key, value in row.items() if key != "golden_answers"} for row in rows]
    parquet.write_table(arrow.Table.from_pylist(without), tmp_path / "r.parquet")
    assert load_questions(tmp_path / "r.parquet") == expected


def test_hub_names_go_through_datasets(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def fake(name, config, split):
        asked.append((name, config, split))
        row = {
            "id": "dev_1",
            "question": "Which film came first?",
            "golden_answers": ["B"],
            "metadata": {
                "type": "bridge",
                "supporting_facts": {"title": ["B", "A"], "sent_id": [1, 0]},
                "context": {"title": ["A", "B"], "sentences": [["a0", "a1"], ["b0", " b1"]]},
            },
        }
        return [row]

    monkeypatch.setattr(datasets, "load_dataset", fake)
    (question,) = load_questions("someone/collection", config="hotpotqa", split="dev")
    assert asked == [("someone/collection", "hotpotqa", "dev")]
    assert (question.id, question.data_source, question.kind) == ("hotpotqa/dev_1", "hotpotqa", "bridge")
    assert question.facts == ('"B"\nb1', '"A"\na0')
    with pytest.raises(ValueError, match="split must be named for the dataset 'someone/collection'"):
        load_questions("someone/collection")


def test_selection_and_limit(tmp_path):
    path = write(tmp_path / "q.jsonl", ROWS)
    assert [q.data_source for q in load_questions(path, data_sources=["hotpotqa"])] == ["hotpotqa"]
    assert [q.data_source for q in load_questions(path, limit=1)] == ["nq"]
    with pytest.raises(ValueError, match="must hold questions, got none"):
        load_questions(path, data_sources=["popqa"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"golden_answers": ["x"]}, "text 'question'.*got None"),
        ({"question": " ", "golden_answers": ["x"]}, "text 'question'"),
        ({"question": "q", "golden_answers": []}, "at least one gold answer, got none in row 0"),
        ({"question": "q"}, "at least one gold answer"),
        ({"question": "q", "golden_answers": [1]}, "texts in 'golden_answers'"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        load_questions(write(tmp_path / "q.jsonl", [row]))


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"got .*missing\.jsonl"):
        load_questions(tmp_path / "missing.jsonl")
    (tmp_path / "q.jsonl").write_text('{"question": "q", "golden_answers": ["x"]}\n{oops\n', encoding="utf-8")
    with pytest.raises(ValueError, match="in line 2"):
        load_questions(tmp_path / "q.jsonl")
    (tmp_path / "r.jsonl").write_text("[1]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must be an object"):
        load_questions(tmp_path / "r.jsonl")
    (tmp_path / "q.csv").write_text("x", encoding="utf-8")
    with pytest.raises(ValueError, match=r"source must end in one of .*got 'q\.csv'"):
        load_questions(tmp_path / "q.csv")
    with pytest.raises(ValueError, match=r"ids must be unique.*'nq/train_0' twice"):
        load_questions(write(tmp_path / "d.jsonl", [ROWS[0], ROWS[0]]))


def test_corpus_forms(tmp_path):
    rows = [{"id": 4, "contents": '"T"\ntext'}, {"title": "U", "text": "more"}, {"text": "bare"}]
    documents = load_corpus(write(tmp_path / "c.jsonl", rows))
    assert documents == [Document("4", '"T"\ntext'), Document("1", '"U"\nmore'), Document("2", "bare")]
    with pytest.raises(ValueError, match=r"row 1 of .* must have the text field 'contents'"):
        load_corpus(write(tmp_path / "d.jsonl", [rows[0], {"id": 1}]))
    with pytest.raises(ValueError, match="empty file"):
        load_corpus(write(tmp_path / "e.jsonl", []))


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who was born first, Ada or Grace?", "comparison"),
        ("Are Paris and Lyon in the same country?", "comparison"),
        ("What do A and B have in common?", "comparison"),
        ("Where was the director of Alien born?", "bridge"),
        ("Who is the actor whose sister wrote it?", "bridge"),
        ("when did rome fall", "lookup"),
        ("", "lookup"),
    ],
)
def test_kind_from_wording(question, kind):
    assert question_kind(question) == kind


def test_sample_of_real_questions(shared_dir):
    path = shared_dir / "search_qa" / "qa_sample.jsonl"
    if not path.is_file():
        pytest.skip("reference data (../shared/search_qa/qa_sample.jsonl) is not here")
    questions = load_questions(path)
    counts = {source: sum(q.data_source == source for q in questions) for source in ("nq", "hotpotqa", "musique")}
    assert (len(questions), counts) == (279, {"nq": 110, "hotpotqa": 129, "musique": 20})
    assert sum(bool(q.facts) for q in questions) == 210
    assert {q.kind for q in questions if q.data_source == "hotpotqa"} == {"bridge", "comparison"}
