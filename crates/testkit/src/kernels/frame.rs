//! How the host and `smcpeer` in a guest speak over a virtual serial port: frames, each of them for a
//! job.

use std::io::{self, Read, Write};

/// A job's number; the host counts.
pub type Job = u32;

/// Longest body, bytes.
pub const BODY_MAX: usize = 64 << 10;
const HEADER: usize = 9;

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The guest is up; its kernel's release.
    Ready(String),
    /// To the guest: run this with `sh -c`.
    Start(Job, String),
    /// To the guest: send this signal to all processes of the job.
    Signal(Job, i32),
    /// From the guest: what the job wrote to either output.
    Output(Job, Vec<u8>),
    /// From the guest: the job is over; its exit code, or 128 and the signal that ended it.
    Ended(Job, i32),
}

impl Frame {
    /// Writes the frame.
    ///
    /// # Errors
    ///
    /// What the channel says; `InvalidInput` if the body is longer than [`BODY_MAX`].
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, job, body) = match self {
            Self::Ready(release) => (0, 0, release.clone().into_bytes()),
            Self::Start(job, command) => (1, *job, command.clone().into_bytes()),
            Self::Signal(job, signal) => (2, *job, signal.to_le_bytes().to_vec()),
            Self::Output(job, bytes) => (3, *job, bytes.clone()),
            Self::Ended(job, status) => (4, *job, status.to_le_bytes().to_vec()),
        };
        let len = u32::try_from(body.len()).ok().filter(|_| body.len() <= BODY_MAX);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let mut bytes = vec![kind];
        bytes.extend(job.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(body);
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Reads the next frame.
    ///
    /// # Errors
    ///
    /// What the channel says; `InvalidData` if it is no frame.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        let [kind, j0, j1, j2, j3, l0, l1, l2, l3] = header;
        let job = u32::from_le_bytes([j0, j1, j2, j3]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        if len > BODY_MAX {
            return Err(wrong());
        }
        let mut body = vec![0; len];
        from.read_exact(&mut body)?;
        let number = |body: &[u8]| body.try_into().map(i32::from_le_bytes).map_err(|_| wrong());
        let text = |body| String::from_utf8(body).map_err(|_| wrong());
        match kind {
            0 => Ok(Self::Ready(text(body)?)),
            1 => Ok(Self::Start(job, text(body)?)),
            2 => Ok(Self::Signal(job, number(&body)?)),
            3 => Ok(Self::Output(job, body)),
            4 => Ok(Self::Ended(job, number(&body)?)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let frames = [
            Frame::Ready("6.12.0".into()),
            Frame::Start(7, "echo".into()),
            Frame::Signal(7, 9),
            Frame::Output(7, vec![0, 255, 10]),
            Frame::Ended(7, 137),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut from).unwrap(), frame);
        }
        assert!(Frame::read(&mut from).is_err());
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert!(Frame::read(&mut &[9, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        assert!(Frame::read(&mut &[3, 0, 0, 0, 0, 255, 255, 255, 255][..]).is_err());
        assert!(Frame::read(&mut &[4, 0, 0, 0, 0, 1, 0, 0, 0, 5][..]).is_err());
        assert!(Frame::Output(1, vec![0; BODY_MAX + 1]).write(&mut Vec::new()).is_err());
    }
}
