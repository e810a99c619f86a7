// A client of shunt serve by github.com/hirochachacha/go-smb2: ADDRESS USER PASSWORD signed|plain SHARE.

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/hirochachacha/go-smb2"
)

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func expect(ok bool, what string) {
	if !ok {
		fmt.Fprintln(os.Stderr, "not so:", what)
		os.Exit(1)
	}
}

func main() {
	conn, err := net.Dial("tcp", os.Args[1])
	check(err, "connect")
	dialer := &smb2.Dialer{
		Negotiator: smb2.Negotiator{RequireMessageSigning: os.Args[4] == "signed"},
		Initiator:  &smb2.NTLMInitiator{User: os.Args[2], Password: os.Args[3]},
	}
	session, err := dialer.Dial(conn)
	check(err, "log on")
	names, err := session.ListSharenames()
	check(err, "list shares")
	listed := false
	for _, name := range names {
		listed = listed || name == os.Args[5]
	}
	expect(listed, "the share is listed")
	share, err := session.Mount(os.Args[5])
	check(err, "mount")

	check(share.MkdirAll(`a\b`, 0o755), "mkdir")
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	check(share.WriteFile(`a\b\data`, data, 0o644), "write")
	there, err := share.ReadFile(`a\b\data`)
	check(err, "read")
	expect(bytes.Equal(there, data), "what was read is what was written")

	file, err := share.OpenFile(`a\b\data`, os.O_RDWR, 0)
	check(err, "open")
	_, err = file.WriteAt([]byte("in the middle"), 1<<20)
	check(err, "write at")
	check(file.Truncate(2<<20), "truncate")
	check(file.Sync(), "sync")
	_, err = file.Seek(1<<20, io.SeekStart)
	check(err, "seek")
	piece := make([]byte, 13)
	_, err = io.ReadFull(file, piece)
	check(err, "read at")
	expect(string(piece) == "in the middle", "what was written in the middle is there")
	about, err := file.Stat()
	check(err, "stat")
	expect(about.Size() == 2<<20, "the length after truncation")
	check(file.Close(), "close")

	for i := 0; i < 300; i++ {
		check(share.WriteFile(fmt.Sprintf(`a\f%03d`, i), []byte{byte(i)}, 0o644), "write a small file")
	}
	all, err := share.ReadDir("a")
	check(err, "list")
	expect(len(all) == 301, fmt.Sprintf("301 entries, not %d", len(all)))
	found, err := share.Glob(`a\f29*`)
	check(err, "glob")
	expect(len(found) == 10, "ten names match")

	check(share.Rename(`a\b\data`, `a\moved`), "rename")
	_, err = share.Stat(`a\b\data`)
	expect(os.IsNotExist(err), "the old name is gone")
	check(share.Remove(`a\moved`), "remove")
	_, err = share.ReadFile("no such file")
	expect(os.IsNotExist(err), "what is not there is said not to be")
	check(share.RemoveAll("a"), "remove all")
	check(share.Umount(), "umount")
	check(session.Logoff(), "log off")
	fmt.Println("all as it should be")
}
