// Stands in for the theme's script of the same name: its style sheet draws every icon that the
// site uses from a font, and the script would add 540 KB to a first visit.
