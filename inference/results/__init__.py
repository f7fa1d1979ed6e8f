"""What a run leaves on disk, and what is told about it.

    python -m inference.results DIR [DIR...]           runs in one Markdown table, beside published numbers
    python -m inference.results DIR [DIR...] --json    the same as one JSON object
    python -m inference.results DIR --rescore          grade a run's answers again (see `rescore`)

A run is a folder (`--output_dir`):

    manifest.json    fingerprint (settings, conditions, data, style, weights: all that decides answers), versions, git
    commit records.jsonl    one line for each (condition, sample), appended and synced after every batch
    summary.json     the summary, which is also the last line of stdout
    summary.md       the same as tables, beside published numbers

A rerun into the folder continues; another fingerprint is refused with the fields that differ. A record:

    sample_idx, sample_id      place in the whole split, and id
    dataset, dataset_split, style, mas_shape
    groups                     what the data says of the question's kind: {"subject": "algebra", "level": 3}
    method, control            latent, text or single; control none, zero, noise or shuffle (null: true messages)
    rounds, latent_length      m steps a stage; null where the method does not depend on it
    question, gold_answer_raw
    rollouts                   one or more, always a list, of objects with
        rollout_idx, sample_seed, raw_output, finish (eos or length), generated_tokens
        pred_answer_parsed, correct, status, rule
        reference_correct      the verdict of the reference's own rule (maths, choice, short text)
        em, f1, official_em, official_f1, judge {verdict, status}    short text; the judge where one was asked
        eval                   code: {all_passed, passed_tests, total_tests, failed_test_index, error_type, detail}
        answer_text            the text that is graded, where tools' results stand in raw_output
        retry                  with --ans: whether the answer was asked for its form again
        text_before_retry, correct_before_retry, suffix_tokens    what it was before, and the tokens that were put in
        tool_calls, tool_failures, tool_tokens    of a speaker with tools: calls by tool, failed ones, tokens of results
    pred_answer_parsed, correct, status    those of rollout 0
    pass_at_k_correct          whether any rollout is correct
    prompt_tokens, latent_steps, generated_tokens    over all agents, rounds and rollouts of the sample;
                               tool_tokens too, where the speaker has tools
    tokens                     {stage: {prompt_tokens, latent_steps, generated_tokens, tool_tokens}, those above 0}
    seconds                    {stage: share of the batch's time}

Status: ok; no_answer; truncated (no answer, and the text stopped at --max_new_tokens); error (the scorer failed,
`rule` says how); or another reason that a scorer gives. Every sample asked for counts in the accuracy, whatever its
status.
"""

from __future__ import annotations

from inference.results.folder import (
    FORMAT,
    Condition,
    Record,
    RunFolder,
    key_of,
    read_records,
    short_hash,
    write_json,
)
from inference.results.report import finish
from inference.results.runs import Run, load_run
from inference.results.summary import nest, summarise
from inference.results.tables import table_text

__all__ = [
    "FORMAT",
    "Condition",
    "Record",
    "Run",
    "RunFolder",
    "finish",
    "key_of",
    "load_run",
    "nest",
    "read_records",
    "short_hash",
    "summarise",
    "table_text",
    "write_json",
]
