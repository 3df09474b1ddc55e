//! The parts' settings that options set one by one. A part owns its settings, their defaults and their validation;
//! an option names the setting that it sets (`option: Type => part.setting`).

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use warmroute_admission::Class;
use warmroute_discovery::DnsName;
use warmroute_follow::{FollowSettings, ModelPaths, ShareSettings, SourceSettings};
use warmroute_gateway::{
    ContinueStreams, DecisionHeaders, FieldPolicy, FieldRules, HeaderOption, SessionKey, SessionKeys,
    WorkerChoice,
};
use warmroute_operate::{PickerSettings, ProcessConfig};
use warmroute_picker::ConformanceHeaders;
use warmroute_policy::PolicySettings;
use warmroute_record::AccessLogConfig;
use warmroute_types::Micros;
use warmroute_wire::TlsFiles;

use super::named::Choice;
use super::quantity::{
    BYTES_PER_SPAN, ByteSize, Count, ListenHost, Millis, OnOff, Secs, Spans, StreamContinuation,
};
use crate::logging::LogConfig;

/// Ten years. A longer time is a mistake, and its deadline would overflow the clock.
const SECS_MAX: u64 = 10 * 365 * 86_400;

/// The settings of each part.
#[derive(Default)]
pub struct Settings {
    pub process: ProcessConfig,
    pub log: LogConfig,
    pub access_log: AccessLogConfig,
    pub sources: SourceSettings,
    pub policies: PolicySettings,
    pub router: warmroute_router::Config,
    pub follow: FollowSettings,
    pub gateway: warmroute_gateway::Config,
    pub tls: TlsSettings,
    pub probe: warmroute_probe::Config,
    pub record: warmroute_record::Config,
    pub sharing: ShareSettings,
    pub picker: PickerSettings,
}

/// Certificates of each kind of connection.
#[derive(Default)]
pub struct TlsSettings {
    /// The client listener.
    pub clients: TlsFiles,
    /// The admin listener.
    pub operators: TlsFiles,
    /// Connections to workers.
    pub workers: TlsFiles,
}

impl Settings {
    /// Checks what each part can check alone.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.process.validate()?;
        self.log.filter()?;
        self.access_log.validate()?;
        self.policies.validate()?;
        self.router.validate()?;
        self.probe.validate()?;
        Ok(self.record.validate()?)
    }
}

/// An option's value of a setting `T`.
pub trait Setting<T>: Sized {
    /// The option that gives a part's default; `None` if the option is left out for it.
    fn read(setting: &T) -> Option<Self>;

    /// Sets the setting. The caller puts the option's key in front of the error.
    fn write(&self, setting: &mut T) -> Result<(), String>;
}

/// A list of texts, each parsed.
fn parsed<T: FromStr<Err: Display>>(texts: &[String]) -> Result<Vec<T>, String> {
    texts.iter().map(|text| text.parse().map_err(wrong)).collect()
}

/// The error of a text that cannot be parsed.
fn wrong(why: impl Display) -> String {
    format!(": {why}")
}

/// A time that a clock can add up. The error is what follows the option's key.
pub fn bounded(time: Duration) -> Result<Duration, String> {
    let is_bounded = time <= Duration::from_secs(SECS_MAX);
    is_bounded.then_some(time).ok_or_else(|| format!(" must be at most {SECS_MAX} seconds"))
}

/// Options and their settings: the option that gives the setting, and how the option changes it.
macro_rules! forms {
    ($(
        $({ $($generic:tt)* })? $option:ty as $setting:ty:
            |$from:ident| $read:expr, |$given:ident, $to:ident| $write:expr;
    )*) => {
        $(
            impl $(<$($generic)*>)? Setting<$setting> for $option {
                fn read($from: &$setting) -> Option<$option> {
                    $read
                }

                fn write(&self, $to: &mut $setting) -> Result<(), String> {
                    let $given = self;
                    $write;
                    Ok(())
                }
            }
        )*
    };
}

forms! {
    {T: Clone} T as T: |setting| Some(setting.clone()), |given, setting| *setting = given.clone();
    {T: Clone} T as Option<T>: |setting| setting.clone(), |given, setting| *setting = Some(given.clone());
    {T: Copy} Choice<T> as T: |setting| Some(Choice(*setting)), |given, setting| *setting = given.0;
    {T: Copy} Count<T> as T: |setting| Some(Count(*setting)), |given, setting| *setting = given.0;
    {T: Copy} Count<T> as Option<T>: |setting| setting.map(Count), |given, setting| *setting = Some(given.0);
    Secs as Duration: |time| Some(Secs(*time)), |given, time| *time = bounded(given.0)?;
    Millis as Duration: |time| Some(Millis(*time)), |given, time| *time = bounded(given.0)?;
    Secs as Micros: |time| Some(Secs((*time).into())), |given, time| *time = bounded(given.0)?.into();
    // Zero is no limit.
    Secs as Option<Duration>:
        |limit| Some(Secs(limit.unwrap_or_default())),
        |given, limit| *limit = Some(bounded(given.0)?).filter(|limit| !limit.is_zero());
    ByteSize as usize: |bytes| Some(ByteSize(*bytes)), |given, bytes| *bytes = given.0;
    ByteSize as u64:
        |bytes| Some(ByteSize(usize::try_from(*bytes).unwrap_or(usize::MAX))),
        |given, bytes| *bytes = given.0 as u64;
    Spans as usize:
        |bytes| Some(Spans(bytes / BYTES_PER_SPAN)),
        |given, bytes| *bytes = given.0.saturating_mul(BYTES_PER_SPAN);
    ListenHost as SocketAddr: |at| Some(ListenHost(at.ip())), |given, at| at.set_ip(given.0);
    u16 as SocketAddr: |at| Some(at.port()), |given, at| at.set_port(*given);
    OnOff as bool: |is_on| Some(OnOff(*is_on)), |given, is_on| *is_on = given.0;
    StreamContinuation as ContinueStreams:
        |setting| Some(StreamContinuation(*setting)), |given, setting| *setting = given.0;
    String as HeaderOption: |header| Some(header.to_string()), |given, header| header.set(given).map_err(wrong)?;
    Vec<String> as SessionKeys:
        |_keys| Some(SessionKey::default_order().iter().map(ToString::to_string).collect()),
        |given, keys| *keys = SessionKeys::new(parsed(given)?);
    Vec<String> as FieldPolicy:
        |_policy| Some(Vec::new()),
        |given, policy| *policy = given.join(",").parse::<FieldRules>().map_err(wrong)?.over(*policy);
    Vec<String> as Vec<DnsName>: |_names| None, |given, names| *names = parsed(given)?;
    Vec<String> as ModelPaths: |_paths| None, |given, paths| *paths = ModelPaths::new(given);
}

/// Switches: what off is, and what on is.
macro_rules! switches {
    ($( $setting:ident: $off:ident, $on:ident; )*) => {
        forms! {
            $(
                OnOff as $setting:
                    |setting| Some(OnOff(*setting == $setting::$on)),
                    |given, setting| *setting = if given.0 { $setting::$on } else { $setting::$off };
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
