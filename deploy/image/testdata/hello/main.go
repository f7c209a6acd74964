// Command hello stands in for the program where only the image matters.
package main

func main() {}
