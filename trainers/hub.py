"""`save_pretrained` and `push_to_hub` of a trainer, through the mixin that models and tokenizers have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils.hub import PushToHubMixin

from .cards import CARD, model_card
from .model_files import gather_weights, write_model


class Published(PushToHubMixin):
    """The trained model as it is now, in a folder or on the hub, with tokenizer and model card."""

    _gathered: dict[str, Tensor] | None = None
    _hub_tags: tuple[str, ...] = ()

    def save_pretrained(self: Any, save_directory: str | os.PathLike[str], **_: Any) -> None:
        """Write model, tokenizer and model card for `from_pretrained`; collective, process 0 writes.

        Args:
            save_directory: the folder, made where it is missing.
            _: what `push_to_hub` says about shards; transformers' defaults are used.
        """
        weights = gather_weights(self) if self._gathered is None else self._gathered
        if self.accelerator.is_main_process:
            folder = Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            write_model(self, folder, weights)

    def push_to_hub(self: Any, repo_id: str, **options: Any) -> Any:
        """Upload what `save_pretrained` writes; collective, process 0 uploads.

        Args:
            repo_id: of the model on the hub, ``user/name``; made where it is missing.
            options: see `transformers.PreTrainedModel.push_to_hub`: private, token, revision, commit_message, tags.

        Returns:
            What the hub says of the commit; None on other processes than 0.
        """
        self._gathered, self._hub_tags = gather_weights(self), tuple(options.get("tags") or ())
        options = {"commit_message": f"Model after update {self.step}", **options}
        try:
            main = self.accelerator.is_main_process
            return PushToHubMixin.push_to_hub(self, repo_id, **options) if main else None
        finally:
            self._gathered, self._hub_tags = None, ()
            self.accelerator.wait_for_everyone()

    def _upload_modified_files(self: Any, working_dir: Any, repo_id: str, *args: Any, **options: Any) -> Any:
        # the mixin has put an empty card in the place of ours
        (Path(working_dir) / CARD).write_text(model_card(self, repo_id, self._hub_tags), encoding="utf-8")
        return PushToHubMixin._upload_modified_files(self, working_dir, repo_id, *args, **options)
