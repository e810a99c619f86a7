//! Counters for Prometheus: its text format (version 0.0.4), and as much of HTTP/1.1 as one page needs.

use std::fmt::{Display, Write as _};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A page of families of numbers.
#[derive(Clone, Debug, Default)]
pub struct Page(String);

/// So many nanoseconds, written in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        write!(f, "{}.{:09}", self.0 / SECOND, self.0 % SECOND)
    }
}

/// Numbers of one name, told apart by labels.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut String,
    name: &'a str,
}

impl Page {
    /// Numbers that only grow while who counts them lives. The name ends in `_total`.
    pub fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("counter", name, help)
    }

    /// What is there now.
    pub fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("gauge", name, help)
    }

    /// Counts by size: see [`Family::part`].
    pub fn histogram<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("histogram", name, help)
    }

    /// Each name once: its numbers have to be together.
    fn family<'a>(&'a mut self, kind: &str, name: &'a str, help: &str) -> Family<'a> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: &mut self.0, name }
    }

    /// All of it.
    #[must_use]
    pub fn text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// One number. Labels may have any values, names only letters and underscores.
    pub fn value(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.part("", labels, value);
    }

    /// One number of those that a histogram has: of `_bucket`, `_sum` or `_count`.
    pub fn part(&mut self, suffix: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = write!(self.page, "{}{suffix}", self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let before = if at == 0 { "{" } else { "," };
            let value = value.to_string();
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.page, "{before}{name}=\"{value}\"");
        }
        let _ = writeln!(self.page, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a request that are looked at, at most.
pub(crate) const REQUEST_MAX: usize = 8 << 10;
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The thread that answers.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Server {
    /// Answers those that `listener` takes with `page`, until `stop`.
    ///
    /// # Errors
    ///
    /// If there is no thread to be had.
    pub fn start(
        listener: TcpListener,
        stop: Arc<AtomicBool>,
        page: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let thread = std::thread::Builder::new()
            .name("shunt-metrics".into())
            .spawn(move || serve(&listener, &stop, &page))?;
        Ok(Self { address, thread })
    }

    /// Waits for its end, after `stop`.
    pub fn finish(self) {
        let _ = self.thread.join();
    }
}

/// Takes the address, before anything else is touched.
///
/// # Errors
///
/// Those of `bind`.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn serve(listener: &TcpListener, stop: &AtomicBool, page: &dyn Fn() -> String) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            // One that goes away in the middle is its own loss.
            Ok((stream, _)) => drop(answer(stream, page)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(mut stream: TcpStream, page: &dyn Fn() -> String) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    exchange(&mut stream, page)
}

/// One request and its answer.
pub(crate) fn exchange(
    stream: &mut (impl Read + Write),
    page: &dyn Fn() -> String,
) -> io::Result<()> {
    let request = read(stream)?;
    let (status, body) = reply(&request, page);
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {}\r\n{allow}\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A request's head. One that takes many pieces may take that many times the patience, and no more.
fn read(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut some = [0; 1024];
    for _ in 0..REQUEST_MAX / some.len() {
        let n = stream.read(&mut some)?;
        request.extend_from_slice(&some[..n]);
        if n == 0 || request.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
    }
    Ok(request)
}

fn reply(request: &[u8], page: &dyn Fn() -> String) -> (&'static str, String) {
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some(path)) if path.split('?').next() == Some("/metrics") => {
            ("200 OK", page())
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "see /metrics\n".into()),
        (Some(_), Some(_)) => ("405 Method Not Allowed", "GET only\n".into()),
        _ => ("400 Bad Request", "no request\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_labels_say_is_no_syntax() {
        let mut page = Page::default();
        page.gauge("a", "What there is.").value(&[], 7);
        page.counter("b_total", "What there was.").value(&[("x", &"say \"\\\n"), ("y", &3)], 1.5);
        let text = "# HELP a What there is.\n# TYPE a gauge\na 7\n\
                    # HELP b_total What there was.\n# TYPE b_total counter\n\
                    b_total{x=\"say \\\"\\\\\\n\",y=\"3\"} 1.5\n";
        assert_eq!(page.text(), text);
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_served_and_nothing_else() {
        let stop = Arc::new(AtomicBool::new(false));
        let any = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::start(bind(any).unwrap(), Arc::clone(&stop), || "x 1\n".into()).unwrap();
        let address = server.address;
        let page = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nx 1\n"),
            "{page}"
        );
        assert!(ask(address, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\r\n\r\n").starts_with("HTTP/1.1 400"));
        let again = bind(address);
        assert!(again.is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse));
        stop.store(true, Ordering::Relaxed);
        server.finish();
    }
}
