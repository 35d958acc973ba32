// Tells who connects: "ADDRESS PORT", by HTTP on port 80 and in a DNS answer (TXT) on port 53/udp; or by HTTP alone, on the
// port of the command line.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
)

func words(address net.Addr) string {
	host, port, _ := net.SplitHostPort(address.String())
	return host + " " + port
}

func answer(query []byte, text string) []byte {
	if len(query) < 12 || len(text) > 255 {
		return nil
	}
	answer := append([]byte{}, query...)
	answer[2] |= 0x80                          // it is an answer
	answer[3] = 0                              // no error
	answer[6], answer[7] = 0, 1                // of one record
	answer[8], answer[9], answer[10], answer[11] = 0, 0, 0, 0
	answer = append(answer, 0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, byte(len(text)+1), byte(len(text)))
	return append(answer, text...)
}

func datagrams() {
	socket, err := net.ListenPacket("udp", ":53")
	if err != nil {
		log.Fatal(err)
	}
	query := make([]byte, 2048)
	for {
		length, from, err := socket.ReadFrom(query)
		if err != nil {
			log.Fatal(err)
		}
		log.Printf("udp %s", words(from))
		socket.WriteTo(answer(query[:length], words(from)), from)
	}
}

func main() {
	port := "80"
	if len(os.Args) > 1 {
		port = os.Args[1]
	} else {
		go datagrams()
	}
	log.Fatal(http.ListenAndServe(":"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port, _ := net.SplitHostPort(r.RemoteAddr)
		log.Printf("tcp %s %s %s", host, port, r.URL)
		w.Header().Set("Connection", "close")
		fmt.Fprintf(w, "%s %s\n", host, port)
	})))
}
