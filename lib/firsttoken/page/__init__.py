"""What a reader sees in a chapter beside its text.

`start` knows chapters and progress, `exercises` has quizzes and checks, `explore` sliders, `plots`
and `diagrams` figures. Views of a running model are in `firsttoken.live`.
"""
