// A server on go-proxyproto, which names its clients in a file: go-proxyproto PORT LOG
package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/pires/go-proxyproto"
)

func main() {
	log, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		panic(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	listener := &proxyproto.Listener{Listener: tcp}
	for {
		connection, err := listener.Accept()
		if err != nil {
			continue
		}
		go func() {
			defer connection.Close()
			if host, _, err := net.SplitHostPort(connection.RemoteAddr().String()); err == nil {
				fmt.Fprintln(log, host)
			}
			io.Copy(connection, connection)
		}()
	}
}
