//! The resulting files, and what happens when they cannot be written.

use std::fs;
use std::path::Path;

use serde_json::Value;
use warmroute_types::Micros;

use super::*;
use crate::earlier_files::tests::earlier;
use crate::{EARLIER_FILES_MAX, Sketch, Span};

fn entry(number: u64) -> TraceEntry {
    let spans: Vec<Span> = (0..20).map(|digest| Span { digest, bytes: 256 }).collect();
    TraceEntry {
        received: Micros(number),
        took: Micros(3),
        prompt_tokens: 1_280,
        output_tokens: Some(7),
        cached_tokens: None,
        model: Some("secret-model".to_owned()),
        session: Some(5),
        sketch: Sketch { salt: 0, spans: spans.into() },
    }
}

/// Records this many entries, and returns when all are written.
fn record(config: Config, entries: u64) -> Counts {
    let (recorder, receiver) = Recorder::open();
    let counts = Arc::clone(&recorder.counts);
    let file = TraceFile::begin(config.file.unwrap(), config.bytes_max).unwrap();
    let writer = std::thread::spawn(move || Writer::new(file, config.names, counts).run(receiver));
    for number in 0..entries {
        recorder.entries.blocking_send(entry(number)).unwrap();
    }
    let counts = Arc::clone(&recorder.counts);
    drop(recorder);
    writer.join().unwrap();
    Recorder { counts, ..Recorder::open().0 }.counts()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("warmroute-record-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn files_are_bounded_in_size_and_number_and_have_their_own_key() {
    let folder = folder("rotation");
    let file = folder.join("trace.jsonl");
    let config = Config { file: Some(file.clone()), bytes_max: 8_000, names: ModelNames::Hashed };
    assert_eq!(record(config.clone(), 100), Counts { written: 100, dropped: 0, failed: 0 });
    let rotated = earlier(&file);
    assert!((2..EARLIER_FILES_MAX).contains(&rotated.len()), "{rotated:?}");
    let before = rotated.last().unwrap().clone();
    let (new, old) = (lines(&file), lines(&before));
    for (lines, path) in [(&new, &file), (&old, &before)] {
        assert_eq!(lines[0]["warmroute_trace"], 1);
        assert!(fs::metadata(path).unwrap().len() <= 8_000);
        assert!(lines[1..].iter().all(|line| line["spans"] == lines[1]["spans"]), "one prompt, one chain");
    }
    assert_eq!(new.last().unwrap()["at_us"], 99);
    assert_ne!(new[1]["spans"], old[1]["spans"]);
    assert_ne!(new[1]["session"], old[1]["session"]);

    let named = Config { names: ModelNames::Named, ..config };
    record(named.clone(), 1);
    assert_eq!(lines(&file)[1]["model"], "secret-model");
    let at_start = earlier(&file).last().unwrap().clone();
    assert_eq!(lines(&at_start), new, "what was there at the start is kept");
    assert!(!fs::read_to_string(&at_start).unwrap().contains("secret"));
    (0..20).for_each(|_| _ = record(named.clone(), 1));
    assert_eq!(earlier(&file).len(), EARLIER_FILES_MAX);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_disk_loses_only_lines() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let config = Config { file: Some(full.to_owned()), bytes_max: 1 << 20, names: ModelNames::Hashed };
    assert_eq!(record(config, 300), Counts { written: 0, dropped: 0, failed: 300 });
}

#[test]
fn a_full_channel_never_blocks() {
    let (recorder, receiver) = Recorder::open();
    (0..WAITING_MAX as u64 + 5).for_each(|number| recorder.record(entry(number)));
    assert_eq!(recorder.counts(), Counts { dropped: 5, ..Counts::default() });
    drop(receiver);
    recorder.record(entry(0));
    assert_eq!(recorder.counts().dropped, 6);
}

#[test]
fn an_unwritable_file_is_refused_at_the_start() {
    let config =
        Config { file: Some("/nowhere/trace".into()), bytes_max: 1 << 20, names: ModelNames::Hashed };
    assert!(
        Recorder::start(config.clone())
            .unwrap_err()
            .to_string()
            .starts_with("cannot write the trace file /nowhere/trace: ")
    );
    let small = Config { bytes_max: 100, ..config };
    assert!(matches!(Recorder::start(small), Err(RecordError::TooSmall)));
}

#[test]
fn restarts_without_traffic_keep_the_recording() {
    let folder = folder("restarts");
    let file = folder.join("trace.jsonl");
    let config = Config { file: Some(file.clone()), bytes_max: 1_000_000, names: ModelNames::Hashed };
    assert_eq!(record(config.clone(), 3).written, 3);
    for restart in 1..=3 {
        record(config.clone(), 0);
        let kept = earlier(&file);
        assert_eq!((kept.len(), lines(&kept[0]).len()), (1, 4), "header and entries, restart {restart}");
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn restarts_with_traffic_keep_every_recording() {
    let folder = folder("kept");
    let file = folder.join("trace.jsonl");
    let config = Config { file: Some(file.clone()), bytes_max: 1_000_000, names: ModelNames::Hashed };
    (1..=4).for_each(|entries| _ = record(config.clone(), entries));
    let kept: Vec<usize> = earlier(&file).iter().map(|path| lines(path).len()).collect();
    assert_eq!((kept, lines(&file).len()), (vec![2, 3, 4], 5), "a header and the entries each");
    fs::remove_dir_all(folder).unwrap();
}
