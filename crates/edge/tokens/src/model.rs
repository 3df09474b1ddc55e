//! A model as its files describe it: whether prompts can be matched in bytes, or at least in tokens.

use std::path::{Path, PathBuf};

use warmroute_prompt::{Alignment, Reading, Renderer, Unaligned};

use crate::{Encoder, EncoderError, FolderError, HubCache, ModelFolder, ModelText};

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Its files cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its template cannot be run.
    #[error("{}: {problem}", folder.display())]
    Unaligned {
        /// The folder of its files; empty for files in memory.
        folder: PathBuf,
        /// What is wrong with them.
        problem: Unaligned,
    },
}

/// A model's files in memory.
#[derive(Clone, Debug)]
pub struct Model {
    text: ModelText,
    folder: PathBuf,
}

impl Model {
    /// Finds a model by folder or by name; see [`ModelFolder::find`].
    pub fn find(name: &str, cache: &HubCache) -> Result<Model, ModelError> {
        let folder = ModelFolder::find(name, cache)?;
        Model::read(folder.read()?, folder.path().to_owned())
    }

    /// From files in memory. A template that cannot be rendered is an error: without it nothing matches.
    pub fn new(text: ModelText) -> Result<Model, ModelError> {
        Model::read(text, PathBuf::new())
    }

    fn read(text: ModelText, folder: PathBuf) -> Result<Model, ModelError> {
        match Renderer::new(&text.files(Reading::AsFiled)) {
            Ok(_) => Ok(Model { text, folder }),
            Err(problem) => Err(ModelError::Unaligned { folder, problem }),
        }
    }

    /// The folder of its files, for error messages.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether vLLM reads the model with mistral-common unless it is told otherwise: the folder has that library's file.
    pub fn has_mistral_format(&self) -> bool {
        self.folder.join("tekken.json").is_file()
    }

    /// Its files.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// The renderer of prompts.
    pub fn renderer(&self) -> Result<Renderer, Unaligned> {
        Renderer::new(&self.text.files(Reading::AsFiled))
    }

    /// The alignment for matching in bytes.
    pub fn alignment(&self, reading: Reading) -> Result<Alignment, Unaligned> {
        Alignment::new(&self.text.files(reading))
    }

    /// The encoder for matching in tokens.
    pub fn encoder(&self, reading: Reading) -> Result<Encoder, EncoderError> {
        Encoder::new(&self.text, reading)
    }
}
