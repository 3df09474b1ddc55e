//! The parts' settings that options set one by one. A part owns its settings, their defaults and their validation;
//! an option names the setting that it sets (`option: Type => part.setting`).

use std::time::Duration;

use warmroute_admission::Class;
use warmroute_follow::Sources;
use warmroute_gateway::{ContinueStreams, DecisionHeaders, WorkerChoice};
use warmroute_operate::ProcessConfig;
use warmroute_picker::ConformanceHeaders;
use warmroute_types::Micros;

use super::quantity::{BYTES_PER_SPAN, ByteSize, Count, Millis, OnOff, Secs, Spans, StreamContinuation};

/// The settings of each part.
#[derive(Default)]
pub struct Settings {
    /// Requests.
    pub gateway: warmroute_gateway::Config,
    /// The routing core.
    pub router: warmroute_router::Config,
    /// Probes of workers.
    pub probe: warmroute_probe::Config,
    /// The endpoint picker.
    pub picker: warmroute_picker::Config,
    /// Where workers come from.
    pub sources: Sources,
    /// Startup and shutdown.
    pub process: ProcessConfig,
}

/// An option's value of a setting `T`.
pub trait Setting<T>: Sized {
    /// The option that gives this setting; `None` if the option is left out for it.
    fn read(setting: &T) -> Option<Self>;

    /// Sets the setting.
    fn write(&self, setting: &mut T);
}

impl<T: Clone> Setting<T> for T {
    fn read(setting: &T) -> Option<T> {
        Some(setting.clone())
    }

    fn write(&self, setting: &mut T) {
        *setting = self.clone();
    }
}

impl<T: Clone> Setting<Option<T>> for T {
    fn read(setting: &Option<T>) -> Option<T> {
        setting.clone()
    }

    fn write(&self, setting: &mut Option<T>) {
        *setting = Some(self.clone());
    }
}

/// Zero is no limit.
impl Setting<Option<Duration>> for Secs {
    fn read(setting: &Option<Duration>) -> Option<Secs> {
        Some(Secs(setting.unwrap_or_default()))
    }

    fn write(&self, setting: &mut Option<Duration>) {
        *setting = Some(self.0).filter(|limit| !limit.is_zero());
    }
}

impl<T: Copy> Setting<T> for Count<T> {
    fn read(setting: &T) -> Option<Count<T>> {
        Some(Count(*setting))
    }

    fn write(&self, setting: &mut T) {
        *setting = self.0;
    }
}

/// Options that are a setting in another form: how the setting becomes the option, and the option the setting.
macro_rules! forms {
    ($( $option:ident of $setting:ty: |$from:ident| $read:expr, |$given:ident| $write:expr; )*) => {
        $(
            impl Setting<$setting> for $option {
                fn read(&$from: &$setting) -> Option<$option> {
                    Some($read)
                }

                fn write(&self, setting: &mut $setting) {
                    let $given = *self;
                    *setting = $write;
                }
            }
        )*
    };
}

forms! {
    Secs of Duration: |time| Secs(time), |option| option.0;
    Millis of Duration: |time| Millis(time), |option| option.0;
    Secs of Micros: |time| Secs(time.into()), |option| option.0.into();
    ByteSize of usize: |bytes| ByteSize(bytes), |option| option.0;
    Spans of usize: |bytes| Spans(bytes / BYTES_PER_SPAN), |option| option.0.saturating_mul(BYTES_PER_SPAN);
    StreamContinuation of ContinueStreams: |setting| StreamContinuation(setting), |option| option.0;
}

/// Switches: what off is, and what on is.
macro_rules! switches {
    ($( $setting:ident: $off:ident, $on:ident; )*) => {
        forms! {
            $(
                OnOff of $setting:
                    |setting| OnOff(setting == $setting::$on),
                    |option| if option.0 { $setting::$on } else { $setting::$off };
            )*
        }
    };
}

switches! {
    DecisionHeaders: Off, On;
    WorkerChoice: Ours, Clients;
    Class: Normal, High;
    ConformanceHeaders: Off, On;
}
