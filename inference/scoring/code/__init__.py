"""Code answers: finding the program in a text, and running it against tests in the sandbox."""

from inference.scoring.code.extract import Extracted, extract
from inference.scoring.code.runner import CodeRunner
from inference.scoring.code.task import CodeTask, Evaluation, mbppplus_task

__all__ = ["CodeRunner", "CodeTask", "Evaluation", "Extracted", "extract", "mbppplus_task"]
