//! Devices of the kernel that packets can be written to as if they had come in there.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::call::{self, Failure};
use crate::interface::{Interface, Request, own};

/// What one write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An IP packet (TUN).
    Packet,
    /// An Ethernet frame (TAP).
    Frame,
}

/// An open device. One write is one packet; a write does not wait.
#[derive(Debug)]
pub struct Tap {
    /// Where to write.
    pub file: File,
    /// What is written there.
    pub shape: Shape,
    /// Its interface.
    pub interface: Interface,
    /// Whether it was made now, and will go with us.
    pub made: bool,
}

impl Tap {
    /// Opens the device of that name, as what it is; makes it if there is none: TAP if its name begins
    /// with `tap`, else TUN.
    ///
    /// # Errors
    ///
    /// The step and its errno: `EPERM` without `CAP_NET_ADMIN`, `EBUSY` if somebody else has it open,
    /// `EINVAL` if there is an interface of that name of another kind.
    pub fn open(name: &str) -> Result<Self, Failure> {
        let there = Interface::find(name)?.is_some();
        let first = if name.starts_with("tap") { Shape::Frame } else { Shape::Packet };
        // As of one queue, or one of its several: whoever made it has said which, and the kernel insists.
        let ways = [0, libc::IFF_MULTI_QUEUE];
        let mut ways = ways.iter().flat_map(|flags| [(first, *flags), (first.other(), *flags)]);
        let mut opened = Self::open_as(name, ways.next().unwrap_or((first, 0)));
        while there && matches!(opened, Err(Failure { errno: libc::EINVAL, .. })) {
            let Some(way) = ways.next() else { break };
            opened = Self::open_as(name, way);
        }
        let (file, name, shape) = opened?;
        let interface = Interface::find(&name)?
            .ok_or(Failure { step: "find the device", errno: libc::ENODEV })?;
        Ok(Self { file, shape, interface, made: !there })
    }

    /// Its interface as it is now, under whatever name; `None`: the device was deleted. In another network namespace it
    /// counts as up.
    ///
    /// # Errors
    ///
    /// The step and its errno.
    pub fn look(&self) -> Result<Option<Interface>, Failure> {
        let mut request = Request::empty();
        match request.ask(&self.file, libc::TUNGETIFF) {
            Err(libc::EBADFD) => return Ok(None),
            other => other.map_err(Failure::at("look at the device"))?,
        }
        let name = request.name();
        request
            .ask(&self.file, libc::SIOCGIFHWADDR)
            .map_err(Failure::at("read the address of the device"))?;
        let (_, address) = request.hardware();
        let there = Interface::find(&name)?.filter(|found| found.index == self.interface.index);
        let elsewhere = || Interface { name, up: true, address, ..self.interface.clone() };
        Ok(Some(there.unwrap_or_else(elsewhere)))
    }

    fn open_as(name: &str, (shape, flags): (Shape, i32)) -> Result<(File, String, Shape), Failure> {
        let mut request =
            Request::new(name).ok_or(Failure { step: "name the device", errno: libc::EINVAL })?;
        let how = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let fd = call::open(c"/dev/net/tun", how, 0).map_err(Failure::at("open /dev/net/tun"))?;
        let fd = own(fd);
        let kind = if shape == Shape::Frame { libc::IFF_TAP } else { libc::IFF_TUN };
        request.set_number(kind | libc::IFF_NO_PI | flags);
        request
            .ask(&fd.as_raw_fd(), libc::TUNSETIFF)
            .map_err(Failure::at("attach to the device"))?;
        Ok((File::from(fd), request.name(), shape))
    }
}

impl Shape {
    const fn other(self) -> Self {
        match self {
            Self::Packet => Self::Frame,
            Self::Frame => Self::Packet,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_device_is_made_and_goes_with_us() {
        let name = format!("shunt{}", std::process::id() % 100_000);
        let tap = match Tap::open(&name) {
            Ok(tap) => tap,
            Err(e) => return println!("skipped: {e}"),
        };
        assert_eq!((tap.shape, tap.made), (Shape::Packet, true));
        tap.interface.set_up(65_535).unwrap();
        assert!(Interface::find(&name).unwrap().unwrap().up);
        assert_eq!(tap.look().unwrap(), Interface::find(&name).unwrap());
        let mut packet = vec![0; 65_535];
        packet[..4].copy_from_slice(&[0x45, 0, 0xff, 0xff]);
        assert_eq!((&tap.file).write(&packet).unwrap(), packet.len(), "longest packet there is");
        drop(tap);
        assert_eq!(Interface::find(&name), Ok(None));
    }

    #[test]
    fn a_device_of_several_queues_is_opened_as_what_it_is() {
        for shape in [Shape::Packet, Shape::Frame] {
            let name = format!("shuntq{}", std::process::id() % 100_000);
            let first = match Tap::open_as(&name, (shape, libc::IFF_MULTI_QUEUE)) {
                Ok((file, ..)) => file,
                Err(e) => return println!("skipped: {e}"),
            };
            let tap = Tap::open(&name).unwrap();
            assert_eq!((tap.shape, tap.made), (shape, false));
            drop((first, tap));
        }
    }

    #[test]
    fn an_interface_of_another_kind_is_refused() {
        assert!(Tap::open("lo").is_err());
    }
}
