package main

func garbageTargets() []target { return nil }
