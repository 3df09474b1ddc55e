//! A model as its files describe it: what can be matched in bytes, what at least in tokens.

use warmroute_prompt::{Alignment, Reading, Renderer, Unaligned};

use crate::{Encoder, EncoderError, FolderError, HubCache, ModelFolder, ModelText};

/// Why a model cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Its files cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its template cannot be run.
    #[error(transparent)]
    Unaligned(#[from] Unaligned),
}

/// A model's files, read.
#[derive(Clone, Debug)]
pub struct Model {
    text: ModelText,
}

impl Model {
    /// By folder or by name; see [`ModelFolder::find`].
    pub fn find(name: &str, cache: &HubCache) -> Result<Model, ModelError> {
        Model::new(ModelFolder::find(name, cache)?.read()?)
    }

    /// From files in memory. A template that cannot be run is an error: without it nothing matches.
    pub fn new(text: ModelText) -> Result<Model, ModelError> {
        Renderer::new(&text.files(Reading::AsFiled))?;
        Ok(Model { text })
    }

    /// Its files.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// For rendering prompts.
    pub fn renderer(&self) -> Result<Renderer, Unaligned> {
        Renderer::new(&self.text.files(Reading::AsFiled))
    }

    /// For matching in bytes.
    pub fn alignment(&self, reading: Reading) -> Result<Alignment, Unaligned> {
        Alignment::new(&self.text.files(reading))
    }

    /// For matching in tokens.
    pub fn encoder(&self, reading: Reading) -> Result<Encoder, EncoderError> {
        Encoder::new(&self.text, reading)
    }
}
