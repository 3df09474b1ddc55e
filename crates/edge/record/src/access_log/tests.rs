//! The lines, the files, and what happens when they cannot be written.

use std::fs;
use std::path::Path;

use serde_json::Value;
use warmroute_types::Micros;

use super::*;
use crate::earlier_files::tests::earlier;

fn entry(model: &str) -> AccessEntry {
    AccessEntry {
        at: std::time::UNIX_EPOCH,
        status: Some(200),
        outcome: "ok",
        model: Some(model.to_owned()),
        worker: Some("http://a:8000".into()),
        attempts: 1,
        cached_tokens: Some(16),
        ttft: Some(Micros(12_345)),
        duration: Micros(20_000),
        bytes: 9,
        ..AccessEntry::new("id-1".into(), "POST".into(), "/v1/chat/completions".into())
    }
}

fn line(format: LineFormat, entry: &AccessEntry) -> String {
    let mut lines = String::new();
    entry.write(format, &mut lines);
    lines
}

/// Writes these entries to a file, one after another, and returns when all are written.
fn log(file: &Path, bytes_max: u64, models: &[&str], between: impl Fn(usize)) -> Counts {
    let (log, receiver) = AccessLog::open();
    let output = LogOutput::file(file.to_owned(), bytes_max).unwrap();
    let writer = LogWriter::new(output, LineFormat::Json, Arc::clone(&log.counts));
    let writer = std::thread::spawn(move || writer.run(receiver));
    for (number, model) in models.iter().enumerate() {
        between(number);
        log.log(entry(model));
        while log.counts().written + log.counts().failed <= number as u64 {
            std::thread::yield_now();
        }
    }
    let counts = log.counts();
    drop(log);
    writer.join().unwrap();
    counts
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("warmroute-access-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn models_in(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let model =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["model"].as_str().unwrap().to_owned();
    text.lines().map(model).collect()
}

#[test]
fn both_formats_show_the_same_fields() {
    let text = line(LineFormat::Text, &entry("m"));
    assert_eq!(
        text,
        "time=1970-01-01T00:00:00.000Z request_id=id-1 method=POST path=/v1/chat/completions status=200 outcome=ok \
         error=- key=- model=m worker=http://a:8000 policy=- reason=- attempts=1 continuations=0 \
         prompt_tokens=- output_tokens=- \
         expected_cached_tokens=- cached_tokens=16 wait_ms=- expected_ttft_ms=- ttft_ms=12.345 duration_ms=20.000 \
         bytes=9 trace_id=-\n"
    );
    let json: Value = serde_json::from_str(&line(LineFormat::Json, &entry("m"))).unwrap();
    let names = |text: &str| -> Vec<String> {
        text.split_whitespace().map(|pair| pair.split_once('=').unwrap().0.to_owned()).collect()
    };
    let mut expected = names(&text);
    expected.sort();
    assert_eq!(json.as_object().unwrap().keys().cloned().collect::<Vec<_>>(), expected);
    assert_eq!((&json["ttft_ms"], &json["key"]), (&Value::from(12.345), &Value::Null));
}

#[test]
fn no_name_forges_a_line_a_field_or_a_control_sequence() {
    for name in ["a\nb", "a b status=500", "\"", "\u{1b}[2J", "", "-", "a\u{2028}b\u{85}", "=", "é\r"] {
        let text = line(LineFormat::Text, &entry(name));
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.trim_end().contains(|c: char| c.is_control() || c == '\u{2028}'), "{text:?}");
        assert!(text.contains(&format!("model={name:?} ")), "{text}");
        let json = line(LineFormat::Json, &entry(name));
        assert_eq!(json.matches('\n').count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["model"], name);
    }
    let long = line(LineFormat::Text, &entry(&"é".repeat(10_000)));
    assert!(long.len() < 1_200, "{}", long.len());
}

#[test]
fn a_full_file_is_set_aside_and_a_restart_appends() {
    let folder = folder("rotation");
    let file = folder.join("access.log");
    let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(log(&file, 4_096, &names[..3], |_| ()).written, 3);
    assert_eq!(log(&file, 4_096, &names[3..], |_| ()).written, 27);
    let mut files = earlier(&file);
    files.push(file.clone());
    assert!(files.len() > 2);
    assert!(files.iter().all(|file| fs::metadata(file).unwrap().len() <= 4_096));
    let written: Vec<String> = files.iter().flat_map(|file| models_in(file)).collect();
    assert_eq!(written, names, "every line once, in order");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_another_program_moves_is_opened_again() {
    let folder = folder("moved");
    let (file, moved) = (folder.join("access.log"), folder.join("access.log.1"));
    let counts = log(&file, 1 << 20, &["a", "b", "c"], |number| match number {
        1 => fs::rename(&file, &moved).unwrap(),
        2 => fs::remove_file(&file).unwrap(),
        _ => {}
    });
    assert_eq!(counts.written, 3);
    assert_eq!((models_in(&moved), models_in(&file)), (vec!["a".to_owned()], vec!["c".to_owned()]));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_channel_never_blocks_and_a_full_disk_loses_only_lines() {
    let (log_handle, receiver) = AccessLog::open();
    (0..WAITING_MAX + 5).for_each(|_| log_handle.log(entry("m")));
    assert_eq!(log_handle.counts(), Counts { dropped: 5, ..Counts::default() });
    drop(receiver);
    let full = Path::new("/dev/full");
    if full.exists() {
        assert_eq!(log(full, 1 << 20, &["a", "b"], |_| ()), Counts { failed: 2, ..Counts::default() });
    }
}

#[test]
fn an_unwritable_file_is_refused_at_the_start() {
    let config = AccessLogConfig {
        file: Some("/nowhere/access.log".into()),
        format: LineFormat::Text,
        bytes_max: 1 << 20,
    };
    let refused = AccessLog::start(config.clone()).unwrap_err().to_string();
    assert!(refused.starts_with("cannot write the access log /nowhere/access.log: "), "{refused}");
    let small = AccessLogConfig { bytes_max: 100, ..config };
    assert!(matches!(AccessLog::start(small), Err(AccessLogError::TooSmall)));
}
